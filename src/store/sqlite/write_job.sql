-- Writes of the engine's decisions about jobs.
-- :update
-- All columns of a record but those that only a new generation changes. Attempts and result stay unless ?18 and ?20
-- are set.
UPDATE jobs SET phase = ?2, rank = ?3, due = ?4, failed = ?5, created = ?6, alarm = ?7, expire = ?8, keep = ?9,
       request = ?10, bytes = ?11, next = ?12, finished = ?13, own_lease = ?14, token = ?15, extended = ?16,
       life = ?17, attempts = CASE WHEN ?18 THEN ?19 ELSE attempts END,
       result = CASE WHEN ?20 THEN ?21 ELSE result END, checkpoint = ?22
WHERE key = ?1;
-- :holder
-- The stream that answers for the lease, and how long after its end the lease is released.
UPDATE jobs SET owner = ?2, stream = ?3, grace = ?4 WHERE key = ?1;
-- :attempts
-- The stored attempts that stay behind new ones.
SELECT substr(attempts, 1, ?2) FROM jobs WHERE key = ?1;
-- :update_spec
UPDATE jobs SET spec = ?2 WHERE key = ?1;
-- :update_payload
UPDATE jobs SET payload = ?2, large = ?3 WHERE key = ?1;
-- :move
-- A job that moves to another topic is placed behind all jobs there.
UPDATE jobs SET topic = ?2, key = (SELECT max(key) + 1 FROM jobs) WHERE key = ?1 RETURNING key;
-- :move_body
UPDATE bodies SET key = ?2 WHERE key = ?1;
-- :put_body
INSERT OR REPLACE INTO bodies (key, payload) VALUES (?1, ?2);
-- :drop_body
DELETE FROM bodies WHERE key = ?1;
-- :put_checkpoint
INSERT OR REPLACE INTO checkpoints (key, checkpoint) VALUES (?1, ?2);
-- :move_checkpoint
UPDATE checkpoints SET key = ?2 WHERE key = ?1;
-- :drop_checkpoint
DELETE FROM checkpoints WHERE key = ?1;
-- :remove
DELETE FROM jobs WHERE key = ?1;

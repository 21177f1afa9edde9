-- settle, extend. The hot path of an ack is one DELETE: a job of which nothing is kept and nothing else waits
-- goes with its ack.
-- :plain
DELETE FROM jobs
WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1 AND keep = 0 AND next = 0 AND large = 0;
-- :past
SELECT past FROM jobs WHERE key = ?1;
-- :lease
SELECT key, lease FROM jobs WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1;
-- :extend
UPDATE jobs SET alarm = ?2, extended = ?3, progress = coalesce(?4, progress) WHERE key = ?1;
-- :detach
UPDATE jobs SET grace = NULL WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1;

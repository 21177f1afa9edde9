-- Generations of a job: the one in its row is replaced, another one waits behind a running one. Large
-- payloads lie in a table of their own.
-- :insert_body
INSERT OR REPLACE INTO bodies (job, payload) VALUES (?1, ?2);
-- :delete_body
DELETE FROM bodies WHERE job = ?1;
-- :overwrite
-- A new generation in the place of a job that is not running: fresh counters, no past. Its arguments are
-- those of `insert` in `enqueue.sql`, up to ?12.
UPDATE jobs SET phase = 0, rank = ?1, due = ?2, created = ?3, alarm = ?4, expire = ?4, keep = ?5,
       request = ?6, bytes = ?7, large = ?8, own_lease = ?9, retention = ?10, terms = ?11,
       payload = ?12, generation = generation + ?14, next = 0, failures = 0, deliveries = 0,
       started = NULL, first_start = NULL, finished = NULL, worker = NULL, error = NULL,
       progress = NULL, history = NULL, result = NULL
WHERE key = ?13;
-- :defer
INSERT OR REPLACE INTO generations (job, rank, due, created, expire, keep, bytes, own_lease,
                                    retention, terms, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11);
-- :deferred
UPDATE jobs SET next = 1, generation = generation + 1, request = ?2 WHERE key = ?1;
-- :next
SELECT rank, due, created, expire, keep, bytes, own_lease, retention, terms, payload
FROM generations WHERE job = ?1;
-- :move_next
UPDATE generations SET due = ?2, rank = ?3 WHERE job = ?1;
-- :delete_next
DELETE FROM generations WHERE job = ?1;
-- :payload
SELECT payload FROM jobs WHERE key = ?1;

-- Steps that several verbs share: a job ends, is forgotten, or waits again.
-- :finish
-- The record stays until the alarm; a tombstone keeps no bodies.
UPDATE jobs SET phase = ?2, finished = ?3, alarm = ?4, settled = ?5, deliveries = ?6,
       failures = ?7, error = ?8, history = ?9, result = ?10, next = 0
WHERE key = ?1;
-- :strip
UPDATE jobs SET terms = NULL, payload = NULL, large = 0, history = NULL, result = NULL, error = NULL,
       progress = NULL
WHERE key = ?1;
-- :forget
DELETE FROM jobs WHERE key = ?1;
-- :forget_body
DELETE FROM bodies WHERE job = ?1;
-- :wait
UPDATE jobs SET phase = 0, due = ?2, alarm = ?3, settled = ?4, deliveries = ?5, failures = ?6,
       error = ?7, history = ?8
WHERE key = ?1;
-- :settled
UPDATE jobs SET settled = ?2 WHERE key = ?1;
-- :unclaim
-- As if the claim had never been.
UPDATE jobs SET phase = 0, alarm = expire, token = NULL,
       first_start = CASE WHEN deliveries = 0 THEN NULL ELSE first_start END,
       worker = CASE WHEN deliveries = 0 THEN NULL ELSE worker END
WHERE key = ?1;
-- :move
UPDATE jobs SET due = ?2, rank = ?3, request = coalesce(?4, request) WHERE key = ?1;
-- :revive
-- A finished job waits again with fresh counters; its attempts stay for people to read.
UPDATE jobs SET phase = 0, due = ?2, rank = ?3, request = coalesce(?4, request), topic = ?5,
       alarm = ?6, expire = ?6, failures = 0, deliveries = 0, first_start = NULL, finished = NULL,
       result = NULL
WHERE key = ?1;
-- :history
SELECT history FROM jobs WHERE key = ?1;
-- :topic_name
SELECT name FROM topics WHERE key = ?1;

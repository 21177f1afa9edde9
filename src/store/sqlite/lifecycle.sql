-- Steps that several verbs share: a lease ends, or a job waits again.
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

-- A job ends: the record is closed and kept for a while, or forgotten.
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
-- :history
SELECT history FROM jobs WHERE key = ?1;

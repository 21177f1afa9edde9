-- delete, reschedule, redrive.
-- :drop_next
DELETE FROM generations WHERE job = ?1;
-- :arrive_anew
-- A job that moved to another topic arrives there after all that are there.
UPDATE jobs SET key = (SELECT max(key) + 1 FROM jobs) WHERE key = ?1 RETURNING key;
-- :move_body
UPDATE bodies SET job = ?2 WHERE job = ?1;

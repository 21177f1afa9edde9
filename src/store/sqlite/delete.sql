-- delete, reschedule, redrive.
-- :drop_next
DELETE FROM generations WHERE job = ?1;
-- :dead
-- `+` keeps the alarm out of the choice of the index: the order of due times is what is wanted.
SELECT * FROM jobs WHERE topic = ?1 AND phase = 3 AND phase >= 2 AND +alarm > ?2
ORDER BY due, key LIMIT ?3;

-- delete, reschedule, redrive.
-- :drop_next
DELETE FROM generations WHERE job = ?1;
-- :dead
SELECT key, topic, id, phase, rank, due, failures, deliveries, generation, created, alarm, expire,
       keep, request, bytes, large, next, token, settled, owner, stream, grace, lease, extended,
       started, first_start, worker, own_lease, retention, terms, finished, error, progress
-- `+` keeps the alarm out of the choice of the index: the order of due times is what is wanted.
FROM jobs WHERE topic = ?1 AND phase = 3 AND phase >= 2 AND +alarm > ?2
ORDER BY due, key LIMIT ?3;

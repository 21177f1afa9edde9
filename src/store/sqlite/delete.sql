-- delete, reschedule, redrive.
-- :drop_next
DELETE FROM generations WHERE job = ?1;
-- :dead
SELECT key, topic, id, phase, rank, due, failures, deliveries, generation, created, alarm, expire,
       keep, request, bytes, large, next, token, settled, owner, stream, grace, lease, extended,
       started, first_start, worker, own_lease, retention, retry, finished, error, progress
FROM jobs WHERE topic = ?1 AND phase = 3 AND alarm > ?2
ORDER BY due, key LIMIT ?3;

-- prune: what has passed its time. One range per phase: waiting jobs expire, finished ones go.
-- :due
SELECT key, topic, id, phase, rank, due, failures, deliveries, generation, created, alarm, expire,
       keep, request, bytes, large, next, token, settled, owner, stream, grace, lease, extended,
       started, first_start, worker, own_lease, retention, terms, finished, error, progress
FROM jobs WHERE phase = ?1 AND alarm <= ?2
ORDER BY alarm LIMIT ?3;
-- :next
SELECT min(alarm) FROM jobs WHERE phase = ?1 AND alarm IS NOT NULL;

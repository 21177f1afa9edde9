-- reap, orphans, unclaim: find running leases. The columns are those of `row.sql`.
-- :expired
SELECT key, topic, id, phase, rank, due, failures, deliveries, generation, created, alarm, expire,
       keep, request, bytes, large, next, token, settled, owner, stream, grace, lease, extended,
       started, first_start, worker, own_lease, retention, terms, finished, error, progress
FROM jobs WHERE phase = 1 AND alarm <= ?1
ORDER BY alarm LIMIT ?2;
-- :next
SELECT min(alarm) FROM jobs WHERE phase = 1 AND alarm > ?1;
-- :orphans
SELECT key, topic, id, phase, rank, due, failures, deliveries, generation, created, alarm, expire,
       keep, request, bytes, large, next, token, settled, owner, stream, grace, lease, extended,
       started, first_start, worker, own_lease, retention, terms, finished, error, progress
FROM jobs WHERE phase = 1 AND alarm IS NOT NULL AND owner <> ?1 AND grace IS NOT NULL;
-- :nonce
SELECT key, topic, id, phase, rank, due, failures, deliveries, generation, created, alarm, expire,
       keep, request, bytes, large, next, token, settled, owner, stream, grace, lease, extended,
       started, first_start, worker, own_lease, retention, terms, finished, error, progress
FROM jobs WHERE phase = 1 AND alarm IS NOT NULL AND token >> 32 & 0xffffffff = ?1;

-- claim: take what waits at one rank of a topic, in its order, up to and including the first job
-- that is not due, behind those that are taken already; then lease what was taken, one by one.
-- :take
SELECT key, id, due, failures, deliveries, created, expire, own_lease, bytes, large, error, terms,
       retention, payload
FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2
ORDER BY due, key LIMIT ?3 OFFSET ?4;
-- :lease
-- A lease that ended moves to the past here, where the next one takes its columns: a first lease, and an
-- undone one, cost nothing.
UPDATE jobs SET phase = 1, token = ?2, settled = NULL, alarm = ?3, owner = ?4, stream = ?5,
       grace = ?6, lease = ?7, extended = NULL, started = ?8,
       first_start = coalesce(first_start, ?8), worker = ?9,
       past = CASE WHEN settled IS NULL THEN past
              ELSE substr(printf('%016x%02x', token, settled) || coalesce(past, ''), 1, ?10) END
WHERE key = ?1;

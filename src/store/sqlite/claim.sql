-- claim: take the waiting jobs at one rank of a topic, in its order, up to and including the first job that is not
-- due, behind those that are taken already, or with ageing the next job of all ranks; then lease the taken jobs, one by
-- one.
-- :take
SELECT key, id, due, created, expire, own_lease, bytes, large, spec, life, payload
FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2
ORDER BY due, key LIMIT ?3 OFFSET ?4;
-- :next
-- The next waiting job at one rank of a topic, by the index alone. A comparison of (due, key) would read all jobs of that
-- due time, as the index is searched by due only.
SELECT due, key FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2 AND due = ?3 AND key > ?4
UNION ALL
SELECT due, key FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2 AND due > ?3
ORDER BY 1, 2 LIMIT 1;
-- :job
-- A waiting job, in the columns of a claim.
SELECT key, id, due, created, expire, own_lease, bytes, large, spec, life, payload FROM jobs
WHERE key = ?1 AND phase = 0;
-- :started
SELECT started FROM shard;
-- :set_started
UPDATE shard SET started = ?1;
-- :lease
-- Earlier leases are recorded in `life`, which does not change before this lease ends.
UPDATE jobs SET phase = 1, token = ?2, alarm = ?3, owner = ?4, stream = ?5, grace = ?6, lease = ?7, extended = NULL,
       started = ?8, worker = ?9
WHERE key = ?1;

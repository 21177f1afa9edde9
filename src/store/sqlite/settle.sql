-- settle: end leases. The hot path is one statement: a job of which nothing is kept and nothing
-- else waits goes with its ack, if the token holds its lease.
-- :ack
DELETE FROM jobs
WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1 AND keep = 0 AND next = 0 AND large = 0
RETURNING started;
-- :extend
UPDATE jobs SET alarm = ?4 + coalesce(?5, lease), extended = ?4, progress = coalesce(?6, progress)
WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1
RETURNING alarm;

-- extend: the fast path of one lease.
-- :extend
-- Without a duration in ?5 the lease's own is used.
UPDATE jobs SET alarm = ?4 + coalesce(?5, lease), extended = ?4
WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1
RETURNING alarm;

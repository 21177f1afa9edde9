-- extend, detach, adopt: of one lease each.
-- :extend
-- Without a duration the lease's own.
UPDATE jobs SET alarm = ?4 + coalesce(?5, lease), extended = ?4
WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1
RETURNING alarm;
-- :detach
UPDATE jobs SET grace = NULL
WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1 AND owner = ?4 AND stream = ?5;
-- :adopt
UPDATE jobs SET owner = ?7, stream = ?8, grace = ?9
WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1
  AND (owner = ?4 AND stream = ?5 AND (grace IS NULL OR ?6 IS NULL OR extended >= ?6)
       OR owner = ?7 AND stream = ?8);

-- leases, extend, detach: of one lease each.
-- :past
SELECT past FROM jobs WHERE key = ?1;
-- :lease
SELECT key, lease FROM jobs WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1;
-- :extend
UPDATE jobs SET alarm = ?2, extended = ?3, progress = coalesce(?4, progress) WHERE key = ?1;
-- :detach
UPDATE jobs SET grace = NULL WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1;

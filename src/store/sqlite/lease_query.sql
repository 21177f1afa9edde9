-- select: queries of running leases.
-- :expired
SELECT * FROM jobs WHERE phase = 1 AND alarm <= ?1
ORDER BY alarm LIMIT ?2;
-- :next_deadline
SELECT min(alarm) FROM jobs WHERE phase = 1 AND alarm > ?1;
-- :orphans
SELECT * FROM jobs WHERE phase = 1 AND alarm IS NOT NULL AND grace IS NOT NULL
  AND owner NOT IN (SELECT value FROM json_each(?1));
-- :of_streams
-- A stream is one number here: its owner in the upper 32 bits.
SELECT * FROM jobs WHERE phase = 1 AND alarm IS NOT NULL
  AND (owner << 32 | stream) IN (SELECT value FROM json_each(?1));
-- A part of all, ordered by deadline: a lease that is not extended keeps its position.
-- :part
SELECT alarm, topic, key, token FROM jobs
WHERE phase = 1 AND alarm IS NOT NULL AND (alarm, topic, key) > (?1, ?2, ?3)
ORDER BY alarm, topic, key LIMIT ?4;

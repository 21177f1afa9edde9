-- prune: jobs past their time. One range per phase: waiting jobs expire, finished ones are deleted.
-- :passed
SELECT * FROM jobs WHERE phase = ?1 AND alarm <= ?2
ORDER BY alarm LIMIT ?3;
-- :next_alarm
SELECT min(alarm) FROM jobs WHERE phase = ?1 AND alarm IS NOT NULL;

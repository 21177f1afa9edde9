-- prune: what has passed its time. One range per phase: waiting jobs expire, finished ones go.
-- :passed
SELECT * FROM jobs WHERE phase = ?1 AND alarm <= ?2
ORDER BY alarm LIMIT ?3;
-- :next_alarm
SELECT min(alarm) FROM jobs WHERE phase = ?1 AND alarm IS NOT NULL;

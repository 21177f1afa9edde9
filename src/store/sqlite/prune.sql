-- prune: what has passed its time. One range per phase: waiting jobs expire, finished ones go.
-- :due
SELECT * FROM jobs WHERE phase = ?1 AND alarm <= ?2
ORDER BY alarm LIMIT ?3;
-- :next
SELECT min(alarm) FROM jobs WHERE phase = ?1 AND alarm IS NOT NULL;

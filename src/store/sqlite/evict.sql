-- evict: the first waiting jobs of one rank.
-- :oldest
SELECT due, key, id FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2 ORDER BY due, key LIMIT ?3;

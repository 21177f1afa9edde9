-- full_topics: the waiting jobs of a topic, and the first ones of one rank.
-- :count
SELECT count(*) FROM jobs WHERE topic = ?1 AND phase = 0;
-- :oldest
SELECT due, key, id FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2 ORDER BY due, key LIMIT ?3;

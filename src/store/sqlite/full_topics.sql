-- full_topics: the waiting jobs of a topic, its bytes without those of tombstones, and the first ones of one rank.
-- :count
SELECT count(*) FROM jobs WHERE topic = ?1 AND phase = 0;
-- :bytes
SELECT coalesce(sum(bytes), 0) FROM jobs WHERE topic = ?1 AND (phase < 2 OR phase = 3 OR keep >= 0);
-- :oldest
SELECT due, key, id, bytes FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2 ORDER BY due, key LIMIT ?3;

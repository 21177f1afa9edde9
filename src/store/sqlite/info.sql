-- info: statistics of the shard. Counts walk ranges of indexes, one topic at a time.
-- :state
SELECT state FROM shard;
-- :topics
SELECT key FROM topics;
-- :waiting
SELECT count(*),
       count(*) FILTER (WHERE due <= ?2),
       count(*) FILTER (WHERE due > ?2 AND failed = 0),
       max(due)
FROM jobs WHERE topic = ?1 AND phase = 0;
-- :ended
SELECT count(*), count(*) FILTER (WHERE phase = 3) FROM jobs WHERE topic = ?1 AND phase >= 2;
-- :leased
SELECT count(*) FROM jobs WHERE phase = 1 AND alarm IS NOT NULL;
-- :latest_forget
SELECT max(alarm) FROM jobs WHERE phase = ?1 AND alarm IS NOT NULL;
-- :bytes
SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size();
-- :pages
SELECT (page_count - freelist_count) * page_size, freelist_count * page_size
FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size();

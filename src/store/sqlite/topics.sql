-- Topics: created by the first enqueue, with totals of their events.
-- :find
SELECT key, paused, EXISTS (SELECT 1 FROM lane_totals WHERE topic = topics.key) FROM topics WHERE name = ?1;
-- :name
SELECT name FROM topics WHERE key = ?1;
-- :create
INSERT INTO topics (name, created) VALUES (?1, ?2);
-- :count
UPDATE topics SET enqueued = enqueued + ?2, succeeded = succeeded + ?3, dead = dead + ?4
WHERE key = ?1;
-- :list
SELECT name, created FROM topics
WHERE name > ?2 AND substr(name, 1, length(?1)) = ?1
ORDER BY name LIMIT ?3;
-- :read
SELECT key, created, enqueued, succeeded, dead FROM topics WHERE name = ?1;
-- :waiting
-- One rank at a time, so that each count walks one range of the index alone.
SELECT count(*),
       count(*) FILTER (WHERE due <= ?3),
       count(*) FILTER (WHERE due > ?3 AND failed = 0),
       count(*) FILTER (WHERE due > ?3 AND due <= ?4),
       min(due)
FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2;
-- :running
SELECT count(*) FROM jobs WHERE topic = ?1 AND phase = 1;
-- :finished
SELECT count(*) FROM jobs WHERE topic = ?1 AND phase = ?2 AND phase >= 2;
-- :behind
SELECT key, name, enqueued,
       EXISTS (SELECT 1 FROM jobs WHERE topic = topics.key),
       EXISTS (SELECT 1 FROM documents WHERE documents.name = 'topic/' || topics.name AND live),
       deleted IS NOT NULL AND deleted = enqueued
FROM topics
WHERE name > ?1 ORDER BY name LIMIT ?2;
-- :forget
DELETE FROM topics WHERE key = ?1;

-- group_settings: settings and statistics of the groups of a topic.
-- :find
SELECT weight, paused FROM group_settings WHERE topic = ?1 AND name = ?2;
-- :names
SELECT name FROM group_settings WHERE topic = ?1;
-- :clear
DELETE FROM group_settings WHERE topic = ?1;
-- :insert
INSERT INTO group_settings (topic, name, weight, paused) VALUES (?1, ?2, ?3, ?4);
-- :list
SELECT name, running, weight, paused FROM lanes WHERE topic = ?1 AND name > ?2 ORDER BY name LIMIT ?3;
-- :waiting
SELECT count(*), count(*) FILTER (WHERE due <= ?3), min(due) FROM lane_jobs WHERE topic = ?1 AND lane = ?2;

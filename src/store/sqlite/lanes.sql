-- lanes: the waiting jobs of each group of a topic, and the lane that has the next turn.
-- :find
SELECT running, weight, paused, served, first, score IS NOT NULL, due FROM lanes WHERE topic = ?1 AND name = ?2;
-- :insert
INSERT INTO lanes (topic, name, weight, paused, served, first) VALUES (?1, ?2, ?3, ?4, ?5, ?6);
-- :update
UPDATE lanes SET running = ?3, weight = ?4, paused = ?5, served = ?6, first = ?7, score = ?8, due = ?9
WHERE topic = ?1 AND name = ?2;
-- :delete
DELETE FROM lanes WHERE topic = ?1 AND name = ?2;
-- :any
SELECT EXISTS (SELECT 1 FROM lanes WHERE topic = ?1);
-- :add_job
INSERT INTO lane_jobs (topic, lane, rank, due, key) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING;
-- :drop_job
DELETE FROM lane_jobs WHERE topic = ?1 AND lane = ?2 AND rank = ?3 AND due = ?4 AND key = ?5;
-- :head
-- The first job of a rank, or of the next rank that has one.
SELECT rank, due, key FROM lane_jobs WHERE topic = ?1 AND lane = ?2 AND rank >= ?3 ORDER BY rank, due, key LIMIT 1;
-- :ready
SELECT name, score FROM lanes WHERE topic = ?1 AND score IS NOT NULL ORDER BY score, first LIMIT 1;
-- :woken
SELECT name FROM lanes WHERE topic = ?1 AND due <= ?2 ORDER BY due LIMIT ?3;
-- :later
SELECT name, due FROM lanes WHERE topic = ?1 AND due IS NOT NULL ORDER BY due LIMIT 1;
-- :totals
SELECT picks, served, running FROM lane_totals WHERE topic = ?1;
-- :set_totals
INSERT OR REPLACE INTO lane_totals (topic, picks, served, running) VALUES (?1, ?2, ?3, ?4);
-- :drop_totals
DELETE FROM lane_totals WHERE topic = ?1;
-- :forget_totals
DELETE FROM lane_totals WHERE topic = ?1;
-- :forget_lanes
DELETE FROM lanes WHERE topic = ?1;
-- :forget_jobs
DELETE FROM lane_jobs WHERE topic = ?1;

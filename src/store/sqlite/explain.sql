-- explain: counts the waiting jobs of one rank that come before a position, and the lanes that come before a score, by the
-- index alone, and no more than a limit.
-- :count_before_in_lane
SELECT count(*) FROM (
  SELECT 1 FROM lane_jobs WHERE topic = ?1 AND lane = ?6 AND rank = ?2 AND (due, key) < (?3, ?4) LIMIT ?5);
-- :count_before
SELECT count(*) FROM (
  SELECT 1 FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2 AND (due, key) < (?3, ?4) LIMIT ?5);
-- :lane
SELECT running, weight, paused, served, first FROM lanes WHERE topic = ?1 AND name = ?2;
-- :lanes_before
SELECT count(*) FROM (
  SELECT 1 FROM lanes WHERE topic = ?1 AND score IS NOT NULL AND (score, first) < (?2, ?3) LIMIT ?4);
-- :running
SELECT count(*) FROM (SELECT 1 FROM jobs WHERE topic = ?1 AND phase = 1 LIMIT ?2);
-- :any_ready
SELECT EXISTS (SELECT 1 FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2 AND due <= ?3);

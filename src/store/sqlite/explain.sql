-- explain: counts the waiting jobs of one rank that come before a position, by the index alone, and no more than a limit.
-- :count_before_in_lane
SELECT count(*) FROM (
  SELECT 1 FROM lane_jobs WHERE topic = ?1 AND lane = ?6 AND rank = ?2 AND (due, key) < (?3, ?4) LIMIT ?5);
-- :count_before
SELECT count(*) FROM (
  SELECT 1 FROM jobs WHERE topic = ?1 AND phase = 0 AND rank = ?2 AND (due, key) < (?3, ?4) LIMIT ?5);

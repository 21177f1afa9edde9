-- Repair after the clock went back. All statements scan many rows, once, when a file is opened.
-- :went_back
-- The clock went back if a newest record is in the future. That is not always the one with the greatest key, which
-- one that moved to another topic may have.
SELECT 1 FROM (SELECT created FROM jobs ORDER BY key DESC LIMIT 10000) WHERE created > ?1;
-- :make_lane_jobs_due
UPDATE lane_jobs SET due = ?1 WHERE due > ?1
  AND key IN (SELECT key FROM jobs WHERE phase = 0 AND due > ?1 AND due = created AND failed = 0);
-- :wake_lanes
-- The next claims look at the first job of each lane.
UPDATE lanes SET due = ?1, score = NULL WHERE score IS NOT NULL OR due IS NOT NULL;
-- :make_undelayed_due
UPDATE jobs SET due = ?1 WHERE phase = 0 AND due > ?1 AND due = created AND failed = 0;

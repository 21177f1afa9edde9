-- heal: the clock went back. Both look at many rows, once, when a file is opened.
-- :went_back
-- A newest record of the future tells that it did; that is not always the one with the greatest key, which one
-- that moved to another topic may have.
SELECT 1 FROM (SELECT created FROM jobs ORDER BY key DESC LIMIT 10000) WHERE created > ?1;
-- :heal
UPDATE jobs SET due = ?1 WHERE phase = 0 AND due > ?1 AND due = created AND failed = 0;

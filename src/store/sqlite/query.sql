-- get, list: reads.
-- :list_waiting
SELECT * FROM jobs
WHERE topic = ?1 AND phase = 0 AND rank = ?2 AND due >= ?3 AND due <= ?4
  AND failed >= ?5 AND failed <= ?6 AND (due > ?7 OR due = ?7 AND key > ?8)
ORDER BY due, key LIMIT ?9;
-- :list_running
SELECT * FROM jobs
WHERE topic = ?1 AND phase = 1 AND (due > ?2 OR due = ?2 AND key > ?3)
ORDER BY due, key LIMIT ?4;
-- :list_finished
SELECT * FROM jobs
WHERE topic = ?1 AND phase = ?5 AND phase >= 2 AND (due > ?2 OR due = ?2 AND key > ?3)
ORDER BY due, key LIMIT ?4;
-- :ids
SELECT id FROM jobs WHERE topic = (SELECT key FROM topics WHERE name = ?1) AND id > ?2
ORDER BY id LIMIT ?3;

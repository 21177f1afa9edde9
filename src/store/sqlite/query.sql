-- get, list, stats: reads.
-- :list_waiting
SELECT * FROM jobs
WHERE topic = ?1 AND phase = 0 AND rank = ?2 AND due >= ?3 AND due <= ?4
  AND failed >= ?5 AND failed <= ?6 AND (due > ?7 OR due = ?7 AND key > ?8)
ORDER BY due, key LIMIT ?9;
-- :list_waiting_of_lane
SELECT jobs.* FROM lane_jobs JOIN jobs ON jobs.key = lane_jobs.key
WHERE lane_jobs.topic = ?1 AND lane_jobs.lane = ?10 AND lane_jobs.rank = ?2 AND lane_jobs.due >= ?3
  AND lane_jobs.due <= ?4 AND failed >= ?5 AND failed <= ?6
  AND (lane_jobs.due > ?7 OR lane_jobs.due = ?7 AND lane_jobs.key > ?8)
ORDER BY lane_jobs.due, lane_jobs.key LIMIT ?9;
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
-- :stored
-- The sizes of a part of a topic, by id: all parts of a job whose size a client chooses, and its id twice, as an index
-- has it, too. A length comes from the head of a row; what is large lies in other tables.
SELECT count(*), ifnull(sum(size), 0), max(id) FROM (
  SELECT id,
         2 * length(id) + ifnull(length(spec), 0) + ifnull(length(payload), 0)
         + ifnull(length(life), 0) + ifnull(length(attempts), 0) + ifnull(length(result), 0) + ifnull(length(worker), 0)
         + CASE WHEN large THEN ifnull((SELECT length(payload) FROM bodies WHERE bodies.key = jobs.key * 2), 0)
           ELSE 0 END
         + CASE WHEN next THEN ifnull((SELECT length(payload) FROM bodies WHERE bodies.key = jobs.key * 2 + 1), 0)
           ELSE 0 END
         + CASE WHEN checkpoint THEN ifnull((SELECT length(checkpoint) FROM checkpoints WHERE checkpoints.key = jobs.key), 0)
           ELSE 0 END AS size
  FROM jobs WHERE topic = (SELECT key FROM topics WHERE name = ?1) AND id > ?2
  ORDER BY id LIMIT ?3);

-- settle. The hot path of an ack is one DELETE: a job of which nothing is kept and nothing else waits
-- goes with its ack.
-- :plain
DELETE FROM jobs
WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1 AND keep = 0 AND next = 0 AND large = 0
  AND checkpoint = 0;

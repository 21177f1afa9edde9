-- settle. The hot path of an ack is one DELETE, for a job without retention and without a waiting generation.
-- A job with a group has a rank from 10 on, and a lane that counts its lease.
-- :plain
DELETE FROM jobs
WHERE topic = ?1 AND id = ?2 AND token = ?3 AND phase = 1 AND keep = 0 AND next = 0 AND large = 0
  AND checkpoint = 0 AND rank < 10;

-- enqueue: write a job unless its id is taken, in which case the engine decides. Nothing is read before the first
-- write.
-- :insert
INSERT INTO jobs (rank, due, created, alarm, expire, keep, request, bytes, large, own_lease, spec, payload, topic, id,
                  phase)
VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, 0)
ON CONFLICT (topic, id) DO NOTHING;

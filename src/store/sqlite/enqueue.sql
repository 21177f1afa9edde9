-- enqueue: write a job unless its id is taken; what happens then is decided by the caller.
-- Arguments are named in `enqueue.rs`. Nothing is read before the first write.
-- :insert
INSERT INTO jobs (topic, id, phase, rank, due, created, alarm, expire, keep, request, bytes, large,
                  own_lease, retention, terms, payload)
VALUES (?1, ?2, 0, ?3, ?4, ?5, ?6, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
ON CONFLICT (topic, id) DO NOTHING;

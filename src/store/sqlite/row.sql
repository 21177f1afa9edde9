-- One job's record: the columns are those of `Row::read`, in its order; the blobs come last and are
-- read only by who needs them.
-- :by_id
SELECT key, topic, id, phase, rank, due, failures, deliveries, generation, created, alarm, expire,
       keep, request, bytes, large, next, token, settled, owner, stream, grace, lease, extended,
       started, first_start, worker, own_lease, retention, terms, finished, error, progress,
       history, result, payload
FROM jobs WHERE topic = ?1 AND id = ?2;
-- :by_key
SELECT key, topic, id, phase, rank, due, failures, deliveries, generation, created, alarm, expire,
       keep, request, bytes, large, next, token, settled, owner, stream, grace, lease, extended,
       started, first_start, worker, own_lease, retention, terms, finished, error, progress,
       history, result, payload
FROM jobs WHERE key = ?1;
-- :body
SELECT payload FROM bodies WHERE job = ?1;

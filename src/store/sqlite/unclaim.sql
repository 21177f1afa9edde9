-- unclaim: a part of the running leases, by when they end: one that nobody extends stays where it is.
-- :part
SELECT alarm, topic, key, token FROM jobs
WHERE phase = 1 AND alarm IS NOT NULL AND (alarm, topic, key) > (?1, ?2, ?3)
ORDER BY alarm, topic, key LIMIT ?4;

-- Lists data that should not be in a shard when all jobs of the load have ended: a row for each item; none: nothing.
-- Other topics belong to their scenarios, except for parts without their job.
WITH
  ours AS (SELECT * FROM topics WHERE name GLOB 'faults.*'),
  rows AS (
    SELECT jobs.*, ours.name,
           EXISTS (SELECT 1 FROM bodies WHERE bodies.key = 2 * jobs.key) AS has_body
    FROM jobs JOIN ours ON ours.key = jobs.topic
  )
SELECT id || ' of ' || name || ' waits' FROM rows WHERE phase = 0
UNION ALL
SELECT id || ' of ' || name || ' runs' FROM rows WHERE phase = 1
UNION ALL
SELECT id || ' of ' || name || ' is in phase ' || phase FROM rows WHERE phase NOT BETWEEN 0 AND 4
UNION ALL
SELECT id || ' of ' || name || ' has ended and is not to be forgotten' FROM rows
WHERE phase >= 2 AND (alarm IS NULL OR finished IS NULL OR alarm <= finished)
UNION ALL
-- No job here has a retention: an ended one leaves a tombstone or nothing.
SELECT id || ' of ' || name || ' has ended and is no tombstone' FROM rows
WHERE phase IN (2, 4)
  AND (keep >= 0 OR large OR has_body OR checkpoint OR coalesce(payload, spec, attempts, result) IS NOT NULL)
UNION ALL
SELECT id || ' of ' || name || ' is dead and has no body' FROM rows
WHERE phase = 3 AND CASE WHEN large THEN NOT has_body ELSE has_body OR payload IS NULL END
UNION ALL
SELECT id || ' of ' || name || ' has a lease' FROM rows WHERE phase >= 2 AND token IS NOT NULL
UNION ALL
SELECT id || ' of ' || name || ' waits for its next generation' FROM rows WHERE next
UNION ALL
SELECT id || ' is of no topic' FROM jobs WHERE topic NOT IN (SELECT key FROM topics)
UNION ALL
SELECT 'a generation of job ' || (key / 2) || ', which has none' FROM bodies
WHERE key % 2 AND key / 2 NOT IN (SELECT key FROM jobs WHERE next)
UNION ALL
SELECT 'a body of job ' || (key / 2) || ', which has none' FROM bodies
WHERE NOT key % 2 AND key / 2 NOT IN (SELECT key FROM jobs WHERE large)
UNION ALL
SELECT 'a checkpoint of job ' || key || ', which has none' FROM checkpoints
WHERE key NOT IN (SELECT key FROM jobs WHERE checkpoint)
UNION ALL
SELECT 'group ' || lanes.name || ' of ' || ours.name FROM lanes JOIN ours ON ours.key = lanes.topic
UNION ALL
SELECT 'job ' || lane_jobs.key || ' waits in group ' || lane FROM lane_jobs JOIN ours ON ours.key = lane_jobs.topic
UNION ALL
SELECT name || ' counts ' || dead || ' dead letters and has ' || found
FROM (SELECT ours.*, (SELECT count(*) FROM rows WHERE topic = ours.key AND phase = 3) AS found FROM ours)
WHERE found <> dead
UNION ALL
SELECT name || ' counts ' || enqueued || ' enqueued and ' || succeeded || ' succeeded, with '
       || (cancelled + dead) || ' that are cancelled or dead'
FROM (SELECT ours.*, (SELECT count(*) FROM rows WHERE topic = ours.key AND phase = 4) AS cancelled FROM ours)
WHERE enqueued < succeeded + dead + cancelled;

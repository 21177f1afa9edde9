-- reap, orphans, unclaim: find running leases.
-- :expired
SELECT * FROM jobs WHERE phase = 1 AND alarm <= ?1
ORDER BY alarm LIMIT ?2;
-- :next
SELECT min(alarm) FROM jobs WHERE phase = 1 AND alarm > ?1;
-- :orphans
SELECT * FROM jobs WHERE phase = 1 AND alarm IS NOT NULL AND grace IS NOT NULL
  AND owner NOT IN (SELECT value FROM json_each(?1));
-- :nonce
SELECT * FROM jobs WHERE phase = 1 AND alarm IS NOT NULL AND token >> 32 & 0xffffffff = ?1;

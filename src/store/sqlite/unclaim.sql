-- unclaim: what one claim has leased.
-- :of_nonce
SELECT * FROM jobs WHERE phase = 1 AND alarm IS NOT NULL AND token >> 32 & 0xffffffff = ?1;

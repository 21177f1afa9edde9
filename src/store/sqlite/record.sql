-- Records of jobs. `SELECT *` wherever `Row::read` reads: it goes by the order of the table, to which a migration only
-- appends.
-- :by_id
SELECT * FROM jobs WHERE topic = ?1 AND id = ?2;
-- :by_key
SELECT * FROM jobs WHERE key = ?1;
-- :body
SELECT payload FROM bodies WHERE key = ?1;
-- :checkpoint
SELECT checkpoint FROM checkpoints WHERE key = ?1;

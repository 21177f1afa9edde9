-- Records of jobs. `JobRow::read` reads `SELECT *`: it uses the order of the columns, and a migration only appends.
-- :by_id
SELECT * FROM jobs WHERE topic = ?1 AND id = ?2;
-- :by_key
SELECT * FROM jobs WHERE key = ?1;
-- :body
SELECT payload FROM bodies WHERE key = ?1;
-- :checkpoint
SELECT checkpoint FROM checkpoints WHERE key = ?1;

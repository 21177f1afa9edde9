-- Version 3: what all replicas of a shard share.

-- Whether the shard takes new jobs: 0 it does, 1 it is to become empty; nothing until somebody says so.
ALTER TABLE shard ADD COLUMN state INTEGER;

CREATE TABLE rings (
  members TEXT    NOT NULL PRIMARY KEY, -- `a:1,b:2`
  version INTEGER NOT NULL,
  open    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

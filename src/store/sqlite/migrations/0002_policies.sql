-- Policies of topics, and their effect on claims.

CREATE TABLE policies (
  name     TEXT    NOT NULL PRIMARY KEY, -- of a topic, or a pattern
  version  INTEGER NOT NULL,
  sequence INTEGER NOT NULL UNIQUE,      -- number of the change: the last one has the greatest
  live     INTEGER NOT NULL,             -- 0: it only records that the topic was deleted
  body     BLOB    NOT NULL              -- a message of `store/codec/stored.proto`
) STRICT, WITHOUT ROWID;

-- NULL: jobs are delivered; else the time until which they are not.
ALTER TABLE topics ADD COLUMN paused INTEGER;

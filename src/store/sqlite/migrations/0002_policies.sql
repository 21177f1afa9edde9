-- Policies of topics, and their effect on claims.

CREATE TABLE policies (
  name     TEXT    NOT NULL PRIMARY KEY, -- of a topic, or a pattern
  version  INTEGER NOT NULL,
  sequence INTEGER NOT NULL UNIQUE,      -- number of the change: the last one has the greatest
  live     INTEGER NOT NULL,             -- 0: nothing is left of it, or the topic was deleted
  body     BLOB    NOT NULL              -- a message of `store/codec/stored.proto`
) STRICT, WITHOUT ROWID;

-- NULL: jobs are delivered; else the time until which they are not.
ALTER TABLE topics ADD COLUMN paused INTEGER;

-- Number of the enqueued jobs when an operator deleted the topic and jobs were left. NULL: that was not so.
ALTER TABLE topics ADD COLUMN deleted INTEGER;

-- Up to the version `horizon` the shard has had all policies: those that it does not have were removed, when the last
-- change was `removed`.
ALTER TABLE shard ADD COLUMN horizon INTEGER NOT NULL DEFAULT 0;
ALTER TABLE shard ADD COLUMN removed INTEGER NOT NULL DEFAULT 0;

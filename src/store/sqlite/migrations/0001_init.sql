-- Version 1 of the schema. A migration that has landed is never edited; a change is a new file.
-- All times are microseconds since the Unix epoch, all durations microseconds.

CREATE TABLE shard (
  -- One row: the name that this file was given at first contact.
  name  TEXT NOT NULL,
  -- Whether the shard takes new jobs: 0 it does, 1 it is to become empty; NULL until that is set.
  state INTEGER,
  -- When the leases of the last claim began; NULL: there was none.
  started INTEGER,
  -- Up to the version `horizon` the shard has had all documents: those that it does not have were removed, when the last
  -- change was `removed`.
  horizon INTEGER NOT NULL DEFAULT 0,
  removed INTEGER NOT NULL DEFAULT 0,
  -- The key by which the server recognizes its receipts, 16 bytes; made when the file is opened.
  receipt_key BLOB
) STRICT;

-- What is known of rings.
CREATE TABLE rings (
  members TEXT    NOT NULL PRIMARY KEY, -- `a:1,b:2`
  version INTEGER NOT NULL,
  open    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE topics (
  key       INTEGER PRIMARY KEY,
  name      TEXT    NOT NULL UNIQUE,
  created   INTEGER NOT NULL,
  enqueued  INTEGER NOT NULL DEFAULT 0,
  succeeded INTEGER NOT NULL DEFAULT 0,
  dead      INTEGER NOT NULL DEFAULT 0,
  -- NULL: jobs are delivered; else the time until which they are not.
  paused    INTEGER,
  -- Number of the enqueued jobs when an operator deleted the topic and jobs were left. NULL: that was not so.
  deleted   INTEGER
) STRICT;

-- Records of jobs. The columns are what statements look at; all the rest is in the messages `spec` and `life`, which
-- are described in `store/codec/stored.proto`. `record.rs` knows the places of the columns: a migration only appends.
CREATE TABLE jobs (
  key       INTEGER PRIMARY KEY, -- the order of arrival
  topic     INTEGER NOT NULL,
  id        TEXT    NOT NULL,
  phase     INTEGER NOT NULL,    -- 0 waiting, 1 running, 2 succeeded, 3 dead, 4 cancelled, 5 expired
  rank      INTEGER NOT NULL,    -- 9 - priority: sorts first what comes first
  due       INTEGER NOT NULL,
  failed    INTEGER NOT NULL DEFAULT 0, -- 1: an attempt has failed
  created   INTEGER NOT NULL,
  alarm     INTEGER,             -- waiting: expires; running: the lease ends; finished: forgotten
  expire    INTEGER,
  keep      INTEGER NOT NULL,    -- after the end: 0 nothing, > 0 record for so long, < 0 tombstone
  request   INTEGER,             -- hash of the last applied request id
  bytes     INTEGER NOT NULL,    -- payload, headers and checkpoint
  large     INTEGER NOT NULL,    -- 1: the payload lies in bodies, so that moving the row stays cheap
  next      INTEGER NOT NULL DEFAULT 0, -- 1: a generation waits for the end of the lease
  checkpoint INTEGER NOT NULL DEFAULT 0, -- 1: it has one, which lies in checkpoints
  finished  INTEGER,
  own_lease INTEGER,
  -- the running lease
  token     INTEGER,
  owner     INTEGER,
  stream    INTEGER,
  grace     INTEGER,             -- NULL: it outlives its call
  lease     INTEGER,             -- its duration
  extended  INTEGER,             -- when it was last extended
  started   INTEGER,
  worker    TEXT,
  -- messages
  spec      BLOB,                -- NULL: there is nothing in it
  life      BLOB,                -- NULL: nothing has happened to the job yet
  -- parts
  attempts  BLOB,
  result    BLOB,
  payload   BLOB
) STRICT;

-- The identity.
CREATE UNIQUE INDEX jobs_id ON jobs (topic, id);
-- The order of a topic; failed is there to count and list without touching the rows.
CREATE INDEX jobs_waiting ON jobs (topic, rank, due, key, failed) WHERE phase = 0;
-- What runs, by topic.
CREATE INDEX jobs_running ON jobs (topic, due) WHERE phase = 1;
-- Finished jobs by due time.
CREATE INDEX jobs_finished ON jobs (topic, phase, due) WHERE phase >= 2;
-- What happens by itself, by time; and all running leases. topic is there to count by it.
CREATE INDEX jobs_alarm ON jobs (phase, alarm, topic) WHERE alarm IS NOT NULL;

-- Payloads that lie apart: large ones under twice the key of their job, and under one more the payload of the
-- generation that waits.
CREATE TABLE bodies (
  key     INTEGER PRIMARY KEY,
  payload BLOB NOT NULL
) STRICT;

-- Checkpoints, under the key of their job. They lie apart, so that moving the row stays cheap.
CREATE TABLE checkpoints (
  key        INTEGER PRIMARY KEY,
  checkpoint BLOB NOT NULL
) STRICT;

-- Documents, such as the policies of topics.
CREATE TABLE documents (
  name     TEXT    NOT NULL PRIMARY KEY, -- its kind, `/`, and its name within the kind
  version  INTEGER NOT NULL,
  sequence INTEGER NOT NULL UNIQUE,      -- number of the change: the last one has the greatest
  live     INTEGER NOT NULL,             -- 0: nothing is left of it but its version
  body     BLOB    NOT NULL              -- a message of `store/codec/stored.proto`
) STRICT, WITHOUT ROWID;

-- Lanes, one for each group of a topic. Nothing here is read or written for topics without groups; the jobs
-- without a group have no rows here, and those with a group have ranks from 10 on, so neither come between the others.

-- Waiting jobs of groups, in the order of their lanes.
CREATE TABLE lane_jobs (
  topic INTEGER NOT NULL,
  lane  TEXT    NOT NULL,
  rank  INTEGER NOT NULL,
  due   INTEGER NOT NULL,
  key   INTEGER NOT NULL, -- of the job
  PRIMARY KEY (topic, lane, rank, due, key)
) STRICT, WITHOUT ROWID;

-- Lanes that have waiting or running jobs.
CREATE TABLE lanes (
  topic   INTEGER NOT NULL,
  name    TEXT    NOT NULL, -- the group
  running INTEGER NOT NULL DEFAULT 0,
  weight  INTEGER NOT NULL,
  paused  INTEGER NOT NULL,
  served  INTEGER NOT NULL, -- its last turn: twice the picks of the topic, and one more if it had it
  first   INTEGER NOT NULL, -- key of the job that it began with
  score   INTEGER,          -- the lowest has the next turn; only if its first job was due when it was last looked at
  due     INTEGER,          -- else the due time of the first of its jobs, unless it is paused or none waits
  PRIMARY KEY (topic, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX lanes_ready ON lanes (topic, score, first) WHERE score IS NOT NULL;
CREATE INDEX lanes_later ON lanes (topic, due) WHERE due IS NOT NULL;

-- Topics that have lanes.
CREATE TABLE lane_totals (
  topic   INTEGER PRIMARY KEY,
  picks   INTEGER NOT NULL DEFAULT 0, -- turns so far
  served  INTEGER NOT NULL DEFAULT 0, -- as in lanes, for the jobs without a group
  running INTEGER NOT NULL DEFAULT 0  -- sum over the lanes
) STRICT;

-- Settings of groups by the name of their topic, which need not exist.
CREATE TABLE group_settings (
  topic  TEXT    NOT NULL,
  name   TEXT    NOT NULL, -- empty: the jobs without a group
  weight INTEGER NOT NULL,
  paused INTEGER NOT NULL,
  PRIMARY KEY (topic, name)
) STRICT, WITHOUT ROWID;

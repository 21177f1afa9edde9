-- Version 1 of the schema. A migration that has landed is never edited; a change is a new file.
-- All times are microseconds since the Unix epoch, all durations microseconds.

CREATE TABLE shard (
  -- One row: the name that this file was given at first contact.
  name TEXT NOT NULL
) STRICT;

CREATE TABLE topics (
  key       INTEGER PRIMARY KEY,
  name      TEXT    NOT NULL UNIQUE,
  created   INTEGER NOT NULL,
  enqueued  INTEGER NOT NULL DEFAULT 0,
  succeeded INTEGER NOT NULL DEFAULT 0,
  dead      INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The places of the columns are known to `Row::read`: a migration only appends.
CREATE TABLE jobs (
  key         INTEGER PRIMARY KEY, -- the order of arrival
  topic       INTEGER NOT NULL,
  id          TEXT    NOT NULL,
  phase       INTEGER NOT NULL,    -- 0 waiting, 1 running, 2 succeeded, 3 dead, 4 cancelled, 5 expired
  rank        INTEGER NOT NULL,    -- 9 - priority: sorts first what comes first
  due         INTEGER NOT NULL,
  failures    INTEGER NOT NULL DEFAULT 0,
  deliveries  INTEGER NOT NULL DEFAULT 0, -- finished hand-overs
  generation  INTEGER NOT NULL DEFAULT 1,
  created     INTEGER NOT NULL,
  alarm       INTEGER,             -- waiting: expires; running: the lease ends; finished: forgotten
  expire      INTEGER,
  keep        INTEGER NOT NULL,    -- after the end: 0 nothing, > 0 record for so long, < 0 tombstone
  request     INTEGER,             -- hash of the last applied request id
  bytes       INTEGER NOT NULL,    -- payload and headers
  large       INTEGER NOT NULL,    -- 1: the payload lies in bodies, so that moving the row stays cheap
  next        INTEGER NOT NULL DEFAULT 0, -- 1: a generation waits in generations
  -- the running lease, or the last one
  token       INTEGER,
  settled     INTEGER,             -- how it ended; NULL while it runs
  owner       INTEGER,
  stream      INTEGER,
  grace       INTEGER,             -- NULL: outlives its call
  lease       INTEGER,             -- its duration
  extended    INTEGER,             -- when it was last extended
  started     INTEGER,
  first_start INTEGER,             -- of the first attempt
  worker      TEXT,
  -- what was asked for, and what became of it
  own_lease   INTEGER,
  retention   INTEGER,
  terms       BLOB,                -- headers and what the job says about retries
  finished    INTEGER,
  error       TEXT,
  progress    TEXT,
  history     BLOB,
  result      BLOB,
  payload     BLOB
) STRICT;

-- The identity.
CREATE UNIQUE INDEX jobs_id ON jobs (topic, id);
-- The order of a topic; failures is there to count and list without touching the rows.
CREATE INDEX jobs_waiting ON jobs (topic, rank, due, key, failures) WHERE phase = 0;
-- What happens by itself, by time; and all running leases. topic is there to count by it.
CREATE INDEX jobs_alarm ON jobs (phase, alarm, topic) WHERE alarm IS NOT NULL;
-- Finished jobs by due time.
CREATE INDEX jobs_finished ON jobs (topic, phase, due) WHERE phase >= 2;

CREATE TABLE bodies (
  job     INTEGER PRIMARY KEY,
  payload BLOB NOT NULL
) STRICT;

-- The next generation of a running job: what takes its place when its lease ends.
CREATE TABLE generations (
  job       INTEGER PRIMARY KEY,
  rank      INTEGER NOT NULL,
  due       INTEGER NOT NULL,
  created   INTEGER NOT NULL,
  expire    INTEGER,
  keep      INTEGER NOT NULL,
  bytes     INTEGER NOT NULL,
  own_lease INTEGER,
  retention INTEGER,
  terms     BLOB,
  payload   BLOB
) STRICT;

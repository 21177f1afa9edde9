-- Version 3: lanes, one for each group of a topic. Nothing here is read or written for topics without groups; the jobs
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

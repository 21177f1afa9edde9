-- Version 4: what runs is counted and listed by topic, without a look at what runs in others.

CREATE INDEX jobs_running ON jobs (topic, due) WHERE phase = 1;

-- write_policies, policies: what operators set for topics.
-- :version
SELECT version FROM policies WHERE name = ?1;
-- :last_sequence
SELECT coalesce(max(sequence), 0) FROM policies;
-- :write
INSERT INTO policies (name, version, sequence, live, body) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, sequence = excluded.sequence, live = excluded.live,
                                 body = excluded.body;
-- :after
SELECT name, version, sequence, body FROM policies WHERE sequence > ?1 ORDER BY sequence LIMIT ?2;
-- :set_paused
UPDATE topics SET paused = ?2 WHERE key = ?1;
-- :has_jobs
SELECT EXISTS (SELECT 1 FROM jobs WHERE topic = ?1);

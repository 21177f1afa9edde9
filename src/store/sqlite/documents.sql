-- write_documents, documents, forget_documents.
-- :version
SELECT version FROM documents WHERE name = ?1;
-- :last_sequence
SELECT max(removed, coalesce((SELECT max(sequence) FROM documents), 0)), horizon, removed FROM shard;
-- :write
INSERT INTO documents (name, version, sequence, live, body) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO UPDATE SET version = excluded.version, sequence = excluded.sequence, live = excluded.live,
                                 body = excluded.body;
-- :after
SELECT name, version, sequence, body FROM documents WHERE sequence > ?1 ORDER BY sequence LIMIT ?2;
-- :remove
DELETE FROM documents WHERE name = ?1 AND version = ?2 AND live = 0;
-- :set_horizon
UPDATE shard SET horizon = ?1, removed = ?2;
-- :set_paused
UPDATE topics SET paused = ?2, deleted = NULL WHERE key = ?1;
-- :set_deleted
UPDATE topics SET deleted = enqueued WHERE key = ?1;
-- :has_jobs
SELECT EXISTS (SELECT 1 FROM jobs WHERE topic = ?1);

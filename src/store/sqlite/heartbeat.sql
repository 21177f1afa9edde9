-- beat, set_state, touch: state that all replicas of a shard share. The shard has one row.
-- :first_state
UPDATE shard SET state = ?1 WHERE state IS NULL;
-- :state
SELECT state FROM shard;
-- :set_state
UPDATE shard SET state = ?1;
-- :touch
UPDATE shard SET state = state;
-- :record
INSERT INTO rings (members, version, open) VALUES (?1, ?2, ?3)
ON CONFLICT (members) DO UPDATE SET version = excluded.version, open = excluded.open;
-- :rings
SELECT members, version, open FROM rings;

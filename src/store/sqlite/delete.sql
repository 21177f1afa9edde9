-- delete, reschedule, redrive.
-- :drop_next
DELETE FROM generations WHERE job = ?1;

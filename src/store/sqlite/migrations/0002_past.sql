-- Version 2: a settle is recognized as a repeat also after the job was leased again.

-- How the leases before the one in `token` ended, newest first: for each 16 hex digits of its token and 2
-- of what `settled` was. It belongs to the record, so it outlives generations and tombstones.
ALTER TABLE jobs ADD COLUMN past TEXT;

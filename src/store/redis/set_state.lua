-- flags: allow-oom
-- set_state: sets for all replicas whether the shard takes new jobs.
-- ARGV: now, state.
-- Reply: nothing.
--#include clock
call('SET', P .. 'state', ARGV[2])
call('PUBLISH', P .. 'w', 'configured')
return { now }

//! The schema: every key of a shard. All of them but the first carry the shard's name as their hash tag,
//! so that a cluster or a proxy keeps them together; `P` below is `ringq:{<shard>}:`.
//!
//! | key | type | what |
//! |---|---|---|
//! | `ringq:shard` | hash | whose Redis this is: `name`, `format`, and the last `time` that a replica noted |
//! | `P seq` | string | arrivals so far: the order of jobs that are due at the same time |
//! | `P topics` | zset | names of topics, all scores 0 |
//! | `P topic:<topic>` | hash | `created`, `enqueued`, `succeeded`, `dead`; `ranks`: which orders may have jobs |
//! | `P jobs:<topic>` | hash | id → record, see [`super::record`]; small payloads lie in it |
//! | `P more:<topic>` | hash | what few jobs have: a letter and the id → story `s`, history `h`, result `r`, payload `p`, next generation `n` and its payload `q` |
//! | `P leases:<topic>` | hash | id → lease, while the job runs |
//! | `P wait:<0-9>:<topic>` | zset | jobs of that priority that wait and never failed: arrival (6 bytes) and id, by due time |
//! | `P back:<0-9>:<topic>` | zset | the same for jobs that failed |
//! | `P done:<2-5>:<topic>` | zset | finished jobs (2 succeeded, 3 dead, 4 cancelled, 5 expired), by due time |
//! | `P deadlines` | zset | running jobs: topic, 0 and id, by the end of their lease |
//! | `P alarms` | zset | jobs that expire, or are to be forgotten: topic, 0 and id, by that time |
//! | `P replicas` | hash | nonce of each replica (8 hex digits) → its last sign of life and the fingerprint of its ring |
//! | `P rings` | hash | members of each ring that a replica has served → version, and whether it is open (0 or 1) |
//! | `P state` | string | `active` or `draining` |
//! | `P void:<nonce>` | string | a claim that was given up before it arrived; gone after ten minutes |
//! | `P w` | channel | wake-ups: `<due time> <topic>`; `configured`: the state was set |
//!
//! All times are microseconds since the Unix epoch. To find a job by hand:
//! `HGET 'ringq:{s0}:jobs:emails' order-1` has its payload at the end, `HEXISTS 'ringq:{s0}:leases:emails'
//! order-1` says whether it runs, `ZCOUNT 'ringq:{s0}:wait:0:emails' -inf +inf` how many wait.

use crate::domain::ShardName;

/// What every key of the shard begins with: the one key that scripts are given.
pub(super) fn prefix(shard: &ShardName) -> String {
    format!("ringq:{{{shard}}}:")
}

/// The channel of wake-ups.
pub(super) fn wake_channel(shard: &ShardName) -> String {
    format!("{}w", prefix(shard))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::redis::script::{ALL, SOURCES};

    /// What stands behind the prefix in a script: `P .. 'name…'`.
    fn names(code: &str) -> impl Iterator<Item = String> {
        let parts = code.split("P .. '").skip(1);
        let name = |part: &str| part.chars().take_while(|c| c.is_ascii_lowercase()).collect();
        parts.map(name).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn scripts_know_the_keys_of_the_table_and_no_others() {
        let here = include_str!("keys.rs");
        let documented: BTreeSet<String> = here
            .lines()
            .filter_map(|line| line.strip_prefix("//! | `P "))
            .map(|row| row.chars().take_while(|c| c.is_ascii_lowercase()).collect())
            .collect();
        let codes = ALL.iter().map(|script| script.source).chain(SOURCES.map(|(_, code)| code));
        let mut used: BTreeSet<String> = codes.flat_map(names).collect();
        // Chosen by a condition where it is used.
        used.extend(["wait".into(), "back".into()]);
        used.remove("");
        assert_eq!(used, documented);
    }

    #[test]
    fn keys_of_a_shard_share_its_hash_tag() {
        let shard = ShardName::try_new("s0").unwrap();
        assert_eq!(prefix(&shard), "ringq:{s0}:");
        assert_eq!(wake_channel(&shard), "ringq:{s0}:w");
    }
}

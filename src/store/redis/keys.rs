//! The schema: every key of a shard. All of them but the first carry the shard's name as their hash tag,
//! so that a cluster or a proxy keeps them together; `P` below is `ringq:{<shard>}:`.
//!
//! | key | type | what |
//! |---|---|---|
//! | `ringq:shard` | hash | whose Redis this is: `name`, `format`, and the last `time` that a replica noted |
//! | `P topics` | zset | names of topics, all scores 0 |
//! | `P claims` | hash | what claims have to know. Of a topic: a time (7 bytes) before which none of its leases ends, then which orders may have jobs (`0-9` of `wait`, `a-j` of `back`; `-`: the line has gaps). 0 and the nonce: a claim that was given up before it arrived. 1: when the leases of the last claim began, which is later than all before |
//! | `P topic:<topic>` | hash | `created`, `arrived`, `ignored` (those of the arrived that an enqueue left, refused or only moved), `gaps` of the line, whether it is `torn`, `succeeded`, `dead`; `empty`: when `tidy` found no job in it, and how many had arrived by then |
//! | `P jobs:<topic>` | hash | id → record, see [`super::entry`]; small payloads lie in it, and the lease of a running job in front of it |
//! | `P more:<topic>` | hash | what few jobs have, by a letter and the id: attempts `h`, result `r`, payload `p`, the payload of the generation that waits `q`, checkpoint `c` |
//! | `P ends:<topic>` | zset | running jobs, by the end of their lease: its token (8 bytes), then, unless an ack may simply remove the job, 0, then the id |
//! | `P line:<topic>` | list | jobs without a priority that were due when they came: due time (7 bytes), number of arrival in the topic (6) and id, in that order. One that a job has left is a gap (`lib/line.lua`) |
//! | `P wait:<0-9>:<topic>` | zset | jobs of that priority that wait and never failed, but for those in the line: members like there, by due time |
//! | `P back:<0-9>:<topic>` | zset | the same for jobs that failed |
//! | `P done:<2-5>:<topic>` | zset | finished jobs (2 succeeded, 3 dead, 4 cancelled, 5 expired), by due time |
//! | `P deadlines` | zset | topics with leases, by a time before which none of them ends |
//! | `P alarms` | zset | jobs that expire, or are to be forgotten: topic, 0 and id, by that time |
//! | `P recent:<second>` | string | lines, each of a job that has ended and left nothing: the last 13 characters of its id, which a server made in this second (1,024 ms), its topic, and unless it has succeeded 0 and its phase. The second is named by the first 8 characters of the id behind its `~` |
//! | `P recent` | zset | these seconds, by their number |
//! | `P recent.from` | string | the number of the last second of which lines were dropped because they were too many |
//! | `P recent.since` | string | when that was looked at last |
//! | `P replicas` | hash | nonce of each replica (8 hex digits) → its last sign of life and the fingerprint of its ring |
//! | `P away` | string | the last sign of life of any replica, and since when and until when there was none (0 and 0: never): `<time> <time> <time>` |
//! | `P rings` | hash | members of each ring that a replica has served → version, and whether it is open (0 or 1) |
//! | `P state` | string | `active` or `draining` |
//! | `P voids` | zset | claims that were given up, by when: the next one removes those older than ten minutes |
//! | `P w` | channel | wake-ups: `<due time> <topic>`; `configured`: the state was set; `forgotten <topic>`: there is no such topic any more |
//! | `P r:<owner>` | channel | what another replica made of leases that the one with this nonce (8 hex digits) handed out: `<what>:<stream>:<token>[,<token>…]`, several with spaces between; what is `settled`, `adopted` (by a stream of another one), `expired` (also: given back), `deleted` or `extended@<deadline>`, a token 16 hex digits |
//!
//! All times are microseconds since the Unix epoch. To read a job by hand: `ringq job get emails order-1` where a server
//! runs, and else `by_hand.lua`, which says how: it cuts the messages out of a record, for `protoc --decode`.
//! `ZCARD 'ringq:{s0}:ends:emails'` says how many run, `LLEN 'ringq:{s0}:line:emails'` and
//! `ZCARD 'ringq:{s0}:wait:0:emails'` how many wait.

use crate::domain::ShardName;

/// What every key of the shard begins with: the one key that scripts are given.
pub(super) fn prefix(shard: &ShardName) -> String {
    format!("ringq:{{{shard}}}:")
}

/// The channel of wake-ups.
pub(super) fn wake_channel(shard: &ShardName) -> String {
    format!("{}w", prefix(shard))
}

/// The channel on which a replica hears of its leases.
pub(super) fn lease_channel(shard: &ShardName, owner: u32) -> String {
    format!("{}r:{owner:08x}", prefix(shard))
}

/// Who calls, as the second key of scripts that tell others: the prefix keeps it in the shard's slot.
pub(super) fn caller(shard: &ShardName, owner: u32) -> Vec<u8> {
    [prefix(shard).as_bytes(), &owner.to_be_bytes()].concat()
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
        assert_eq!(lease_channel(&shard, 0xbeef), "ringq:{s0}:r:0000beef");
        assert_eq!(caller(&shard, 0x41), b"ringq:{s0}:\0\0\0A");
    }
}

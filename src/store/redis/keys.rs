//! Schema of a shard: all its keys. All keys but the first have the shard's name as their hash tag, so that a cluster
//! or a proxy keeps them together. `P` below is `ringq:{<shard>}:`.
//!
//! | key | type | what |
//! |---|---|---|
//! | `ringq:shard` | hash | owner of this Redis: `name`, `format`, the last `time` that a replica wrote, and `receipts`, the secret key of receipts (32 hex digits) |
//! | `P topics` | zset | names of topics, all scores 0 |
//! | `P claims` | hash | state for claims. Per topic: a time (7 bytes) before which none of its leases ends, then marks of the orders that may have jobs (`0-9` of `wait`, `a-j` of `back`; `-`: the line has gaps; `P`: the topic is paused; `kl`: the topic has lanes, or its jobs without a group are paused). 0 and a nonce: a claim that was cancelled before it arrived. 1: start of the leases of the last claim, later than all before |
//! | `P topic:<topic>` | hash | `created`, `arrived`, `ignored` (number of the arrived that an enqueue left unchanged, rejected or only moved), `gaps` of the line, `torn` if these are not known, `paused` (the time until which no job is delivered, 0: no end), `succeeded`, `dead`, `bytes` of its counted jobs, `counting` (a cursor while jobs from before a limit are counted, then `done`), `limited` (1 or 0: its settings have a limit of bytes or not); `empty`: the time at which `tidy` found no job in it, and the number that had arrived by then; time 0: an operator deleted the topic |
//! | `P jobs:<topic>` | hash | id → record, see [`super::entry`]; small payloads are part of it, and the lease of a running job is in front of it |
//! | `P more:<topic>` | hash | optional parts of jobs, by a letter and the id: attempts `h`, result `r`, payload `p`, payload of the pending generation `q`, checkpoint `c` |
//! | `P ends:<topic>` | zset | running jobs, by the end of their lease: its token (8 bytes), then 0 unless an ack may remove the job without a check, then the id; of a job with a group: token, 1, id, 0, group |
//! | `P line:<topic>` | list | jobs without a priority that were due when they came: due time (7 bytes), number of arrival in the topic (6) and id, in that order. A member that its job has left is a gap (`lib/ready_list.lua`) |
//! | `P wait:<0-9>:<topic>` | zset | waiting jobs of that priority that never failed, except those in the line: members as in the line, by due time |
//! | `P back:<0-9>:<topic>` | zset | waiting jobs of that priority that failed: members as in the line, by due time |
//! | `P groups:<topic>` | hash | lanes (`lib/lanes.lua`): group → number of its leases, weight, whether it is paused, place (1 ready, 2 later, 0 neither), number of its last turn (twice, and one more if it had it), arrival of its first job, due time of its first job if it is later, marks of its orders. Empty: number of turns, the last one of the jobs without a group, number of leases of all groups |
//! | `P lanes:<topic>` | zset | groups that have a lane, all scores 0 |
//! | `P ready:<topic>` | zset | lanes whose first job is due: arrival of the first job (6 bytes) and group, by their score (`domain/turns.rs`) |
//! | `P later:<topic>` | zset | lanes of which no job is due: groups, by due time |
//! | `P grouped:<0-1>:<topic>` | zset | waiting jobs of all groups (0 those that never failed, 1 those that failed): members as in the line, by due time. Each is in an order of its lane, too: `wait` and `back` of `<topic>`, 0 and the group |
//! | `P shares:<topic>` | hash | settings of groups: group (empty: the jobs without one) → weight, and `paused` |
//! | `P done:<2-5>:<topic>` | zset | finished jobs (2 succeeded, 3 dead, 4 cancelled, 5 expired), by due time |
//! | `P deadlines` | zset | topics with leases, by a time before which none of them ends |
//! | `P alarms` | zset | jobs that expire, or whose retention ends: topic, 0 and id, by that time |
//! | `P recent:<second>` | string | lines, each of a job that has ended and left nothing: the last 13 characters of its id, which a server made in this second (1,024 ms), its topic, and unless it has succeeded 0 and its phase. The second is named by the first 8 characters of the id behind its `~` |
//! | `P recent` | zset | these seconds, by their number |
//! | `P recent.from` | string | the number of the last second of which lines were dropped because they were too many |
//! | `P recent.since` | string | time of the last check of these |
//! | `P replicas` | hash | nonce of each replica (8 hex digits) → time of its last heartbeat and the fingerprint of its ring |
//! | `P away` | string | time of the last heartbeat of any replica, then start and end of the last time without any (0 and 0: never): `<time> <time> <time>` |
//! | `P rings` | hash | members of each ring that a replica has served → version, and open or not (1 or 0) |
//! | `P documents` | hash | name of a document: its kind, `/`, and its name within the kind (`topic/<topic>`, `topic/<prefix>*`, `file/topics`) → `<version> <number of the change> <live> ` and the document, a message of `stored.proto`; `live` is 0 where nothing is left of it but its version. Empty: the horizon, `<version> <number of a change>`: up to this version the shard has had all documents, and those that it does not have were removed after that change |
//! | `P documents.order` | zset | these names, by the number of the change that stored them |
//! | `P state` | string | `active` or `draining` |
//! | `P voids` | zset | cancelled claims, by the time of the cancellation: the next one removes those older than ten minutes |
//! | `P w` | channel | wake-ups: `<due time> <topic>`; `configured`: the state was set; `forgotten <topic>`: the topic was deleted; `documents`: documents were stored |
//! | `P r:<owner>` | channel | changes that another replica made to leases of the replica with this nonce (8 hex digits): `<what>:<stream>:<token>[,<token>…]`, several separated by spaces; `<what>` is `settled`, `adopted` (by a stream of another replica), `expired` (also: released), `deleted` or `extended@<deadline>`; a token is 16 hex digits |
//!
//! All times are microseconds since the Unix epoch. To read a job by hand: `ringq job get emails order-1` where a
//! server runs, else `by_hand.lua`, which describes its use: it extracts the messages of a record for
//! `protoc --decode`. `ZCARD 'ringq:{s0}:ends:emails'` returns the number of running jobs,
//! `LLEN 'ringq:{s0}:line:emails'` and `ZCARD 'ringq:{s0}:wait:0:emails'` the number of waiting ones.

use crate::domain::ShardName;

/// Prefix of all keys of the shard: the one key that scripts receive.
pub(super) fn prefix(shard: &ShardName) -> String {
    format!("ringq:{{{shard}}}:")
}

/// Name of the channel of wake-ups.
pub(super) fn wake_channel(shard: &ShardName) -> String {
    format!("{}w", prefix(shard))
}

/// Name of the channel on which a replica receives events of its leases.
pub(super) fn lease_channel(shard: &ShardName, owner: u32) -> String {
    format!("{}r:{owner:08x}", prefix(shard))
}

/// Caller of a script, as the second key of scripts that notify other replicas: the prefix keeps it in the shard's
/// slot.
pub(super) fn caller(shard: &ShardName, owner: u32) -> Vec<u8> {
    [prefix(shard).as_bytes(), &owner.to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::redis::script::{ALL, SOURCES};

    /// Key names after the prefix in a script: `P .. 'name…'`.
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
        // The code that uses them chooses the name by a condition.
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

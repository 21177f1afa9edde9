//! Shards as operators see and set them.

use crate::domain::ShardName;
use crate::domain::ring::ShardState;
use crate::pb;
use crate::scheduler::ShardInfo;
use crate::store::StoreInfo;

use super::enums::{shard_state, to_shard_state};
use super::number::{to_int32, to_int64};
use super::time::to_timestamp;
use super::{Checks, FieldPath, InvalidRequest};

/// Reads a SetShardState request: the shard and its new state.
pub(crate) fn set_shard_state(
    request: &pb::SetShardStateRequest,
) -> Result<(ShardName, ShardState), InvalidRequest> {
    let mut checks = Checks::default();
    let pb::SetShardStateRequest { name, state } = request;
    let name = checks.check(FieldPath::ROOT.field("name"), ShardName::try_new(name));
    let state = shard_state(&mut checks, FieldPath::ROOT.field("state"), *state);
    checks.finish(name.zip(state))
}

/// Converts a shard, from its own information or from the error that replaced it.
pub(crate) fn to_shard(shard: ShardInfo) -> pb::Shard {
    let known = pb::Shard {
        name: shard.name,
        address: shard.address,
        weight: to_int32(shard.weight),
        role: to_shard_state(shard.state).into(),
        on_ring: shard.is_on_ring,
        ..pb::Shard::default()
    };
    match shard.info {
        Ok(info) => {
            pb::Shard { last_error: shard.refusal.unwrap_or_default(), ..answering(known, info) }
        }
        Err(error) => pb::Shard {
            state: pb::ShardState::Unreachable.into(),
            last_error: error.to_string(),
            ..known
        },
    }
}

fn answering(known: pb::Shard, info: StoreInfo) -> pb::Shard {
    let content = info.counts;
    pb::Shard {
        state: known.role,
        jobs: to_int64(info.jobs),
        used_memory_bytes: to_int64(info.bytes),
        scheduled: to_int64(content.scheduled),
        ready: to_int64(content.ready),
        running: to_int64(content.running),
        backoff: to_int64(content.backoff),
        dead: to_int64(content.dead),
        finished: to_int64(content.finished),
        latest_due_time: content.latest_due.map(to_timestamp),
        latest_forget_time: content.latest_forget.map(to_timestamp),
        ..known
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;
    use crate::domain::Time;
    use crate::store::{Error, RecordCounts};

    fn about(info: crate::store::Result<StoreInfo>) -> ShardInfo {
        ShardInfo {
            name: "s0".into(),
            address: "redis://h:6379".into(),
            weight: 3,
            state: ShardState::Draining,
            refusal: None,
            is_on_ring: true,
            info,
        }
    }

    #[test]
    fn a_shard_that_does_not_answer_is_unreachable_and_keeps_its_role() {
        let info = Err(Error::Unavailable("connection refused".into()));
        let shard = to_shard(about(info));
        assert_eq!(shard.state(), pb::ShardState::Unreachable);
        assert_eq!(shard.address, "redis://h:6379");
        assert_eq!((shard.role(), shard.on_ring), (pb::ShardState::Draining, true));
        assert_eq!((shard.weight, shard.jobs, shard.last_error.is_empty()), (3, 0, false));
    }

    #[test]
    fn shard_info_is_reported() {
        let second = |n: i64| Some(Time(n * 1_000_000));
        let content = RecordCounts {
            scheduled: 1,
            ready: 2,
            running: 3,
            backoff: 4,
            dead: 5,
            finished: 6,
            latest_due: second(7),
            latest_forget: second(8),
        };
        let (state, jobs) = (Some(ShardState::Draining), content.total());
        let info = StoreInfo { kind: "redis", state, jobs, counts: content, bytes: 9 };
        let shard = to_shard(about(Ok(info)));
        assert_eq!((shard.state(), shard.role), (pb::ShardState::Draining, shard.state));
        assert_eq!((shard.jobs, shard.used_memory_bytes), (21, 9));
        assert_eq!(
            [
                shard.scheduled,
                shard.ready,
                shard.running,
                shard.backoff,
                shard.dead,
                shard.finished
            ],
            [1, 2, 3, 4, 5, 6]
        );
        let seconds = |time: Option<prost_types::Timestamp>| time.map(|time| time.seconds);
        assert_eq!(seconds(shard.latest_due_time), Some(7));
        assert_eq!(seconds(shard.latest_forget_time), Some(8));
    }

    #[test]
    fn only_roles_can_be_set() {
        use pb::ShardState::{Active, Draining, Unreachable, Unspecified};
        let set = |name: &str, state: i32| {
            set_shard_state(&pb::SetShardStateRequest { name: name.into(), state })
        };
        assert_eq!(set("s0", Active.into()).unwrap().1, ShardState::Active);
        assert_eq!(set("s0", Draining.into()).unwrap().1, ShardState::Draining);
        let invalid = |field: &str| (field.to_owned(), "INVALID_FIELD");
        for state in [Unspecified.into(), Unreachable.into(), 99] {
            assert_eq!(refused(set("s0", state)), [invalid("state")]);
        }
        assert_eq!(refused(set("", 0)), [invalid("name"), invalid("state")]);
        assert_eq!(refused(set("S 0", Active.into())), [invalid("name")]);
    }
}

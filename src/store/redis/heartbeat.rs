//! State that all replicas of a shard share: heartbeats, the shard's state, and known rings.

use tokio::time::Instant;

use crate::domain::Time;
use crate::domain::open_rings::{RingMembers, RingRecord, RingRecords};
use crate::domain::ring::ShardState;
use crate::store::{Heartbeat, ReplicaHeartbeat, Result, SharedState};

use super::reply::{ScriptReply, unexpected};
use super::script::Verb;
use super::{ConnectionLane, RedisStore};

impl RedisStore {
    /// Implements [`Store::heartbeat`](crate::store::Store::heartbeat).
    pub(super) async fn heartbeat(&self, beat: Heartbeat) -> Result<SharedState> {
        let mut call = self.shard.write_call(Verb::Heartbeat, None).await?;
        call.arg(owner_hex(beat.owner))
            .arg(format!("{:016x}", beat.ring))
            .arg(state_name(beat.state))
            .arg(self.shard.receipt_key.proposal());
        call.arg(beat.seen_owners.len()).arg(beat.removed_owners.len());
        for &other in beat.seen_owners.iter().chain(&beat.removed_owners) {
            call.arg(owner_hex(other));
        }
        for (members, mark) in &beat.rings {
            call.arg(members.as_str()).arg(mark.version).arg(u8::from(mark.open));
        }
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        let (now, state) = (reply.time()?, reply.text()?);
        let state = parse_state(&state).ok_or_else(|| unexpected("the state of a shard"))?;
        let (is_new, last_heartbeat) = (reply.number()? == 1, reply.maybe_time()?);
        self.shard.receipt_key.stored(&reply.text()?)?;
        let (mut rings, mut replicas) = (RingRecords::new(), Vec::new());
        for _ in 0..reply.length()? {
            // A value that another version of ringq wrote is skipped.
            let known = RingMembers::stored(&reply.text()?).zip(parse_ring_version(&reply.text()?));
            rings.extend(known);
        }
        while !reply.is_empty() {
            replicas.push(read_heartbeat(&mut reply)?);
        }
        Ok(SharedState { now, state, is_new, last_heartbeat, rings, replicas })
    }

    /// Implements [`Store::set_state`](crate::store::Store::set_state).
    pub(super) async fn set_state(&self, state: ShardState, until: Option<Instant>) -> Result<()> {
        let mut call = self.shard.write_call(Verb::SetState, until).await?;
        call.arg(state_name(state));
        self.run(ConnectionLane::Write, &call).await.map(drop)
    }
}

fn owner_hex(nonce: u32) -> String {
    format!("{nonce:08x}")
}

fn state_name(state: ShardState) -> &'static str {
    match state {
        ShardState::Active => "active",
        ShardState::Draining => "draining",
    }
}

/// Parses a stored state.
pub(super) fn parse_state(text: &str) -> Option<ShardState> {
    [ShardState::Active, ShardState::Draining].into_iter().find(|&state| state_name(state) == text)
}

/// Parses `<version> <open>`.
fn parse_ring_version(text: &str) -> Option<RingRecord> {
    let (version, open) = text.split_once(' ')?;
    Some(RingRecord { version: version.parse().ok()?, open: open == "1" })
}

/// Reads a replica and `<last heartbeat> <fingerprint>`.
fn read_heartbeat(reply: &mut ScriptReply) -> Result<ReplicaHeartbeat> {
    let (owner, text) = (reply.text()?, reply.text()?);
    let read = || {
        let (at, ring) = text.split_once(' ')?;
        let owner = u32::from_str_radix(&owner, 16).ok()?;
        let ring = u64::from_str_radix(ring, 16).ok()?;
        Some(ReplicaHeartbeat { owner, ring, time: Time(at.parse().ok()?) })
    };
    read().ok_or_else(|| unexpected("the heartbeat of a replica"))
}

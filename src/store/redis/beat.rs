//! What all replicas of a shard share: signs of life, the shard's state, and what is known of rings.

use tokio::time::Instant;

use crate::domain::Time;
use crate::domain::ring::ShardState;
use crate::domain::rings::{Mark, Members, Records};
use crate::store::{Beat, Census, Result, Sign};

use super::reply::{Reply, unexpected};
use super::script::Verb;
use super::{Lane, RedisStore};

impl RedisStore {
    /// [`Store::beat`](crate::store::Store::beat).
    pub(super) async fn beat(&self, beat: Beat) -> Result<Census> {
        let mut call = self.shard.write_call(Verb::Beat, None).await?;
        call.arg(owner(beat.owner)).arg(format!("{:016x}", beat.ring)).arg(name(beat.state));
        call.arg(beat.met.len()).arg(beat.gone.len());
        for &other in beat.met.iter().chain(&beat.gone) {
            call.arg(owner(other));
        }
        for (members, mark) in &beat.rings {
            call.arg(members.as_str()).arg(mark.version).arg(u8::from(mark.open));
        }
        let mut reply = self.run(Lane::Write, &call).await?;
        let (now, state) = (reply.time()?, reply.text()?);
        let state = state_named(&state).ok_or_else(|| unexpected("the state of a shard"))?;
        let (mut rings, mut replicas) = (Records::new(), Vec::new());
        for _ in 0..reply.length()? {
            // What another version of us has written is for others.
            let known = Members::stored(&reply.text()?).zip(mark(&reply.text()?));
            rings.extend(known);
        }
        while !reply.is_empty() {
            replicas.push(sign(&mut reply)?);
        }
        Ok(Census { now, state, rings, replicas })
    }

    /// [`Store::set_state`](crate::store::Store::set_state).
    pub(super) async fn set_state(&self, state: ShardState, until: Option<Instant>) -> Result<()> {
        let mut call = self.shard.write_call(Verb::SetState, until).await?;
        call.arg(name(state));
        self.run(Lane::Write, &call).await.map(drop)
    }
}

fn owner(nonce: u32) -> String {
    format!("{nonce:08x}")
}

fn name(state: ShardState) -> &'static str {
    match state {
        ShardState::Active => "active",
        ShardState::Draining => "draining",
    }
}

/// The state that is stored so.
pub(super) fn state_named(text: &str) -> Option<ShardState> {
    [ShardState::Active, ShardState::Draining].into_iter().find(|&state| name(state) == text)
}

/// `<version> <open>`
fn mark(text: &str) -> Option<Mark> {
    let (version, open) = text.split_once(' ')?;
    Some(Mark { version: version.parse().ok()?, open: open == "1" })
}

/// A replica, and `<last sign> <fingerprint>`.
fn sign(reply: &mut Reply) -> Result<Sign> {
    let (owner, text) = (reply.text()?, reply.text()?);
    let read = || {
        let (at, ring) = text.split_once(' ')?;
        let owner = u32::from_str_radix(&owner, 16).ok()?;
        let ring = u64::from_str_radix(ring, 16).ok()?;
        Some(Sign { owner, ring, at: Time(at.parse().ok()?) })
    };
    read().ok_or_else(|| unexpected("the sign of a replica"))
}

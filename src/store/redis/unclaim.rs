//! Unclaim: undo leases that reached nobody, one by one or all of a claim whose answer was lost.

use crate::domain::limit;
use crate::store::{LeaseRef, Result, Unclaim};

use super::leases::add_lease;
use super::script::Verb;
use super::{Lane, RedisStore};

impl RedisStore {
    /// [`Store::unclaim`](crate::store::Store::unclaim).
    pub(super) async fn unclaim(&self, what: Unclaim) -> Result<u64> {
        let refs = match what {
            Unclaim::Leases(refs) => refs,
            Unclaim::Nonce(nonce) => {
                self.give_up(nonce).await?;
                let running = self.running().await?;
                let mine = running.into_iter().filter(|run| run.lease.token.nonce() == nonce);
                mine.map(|run| LeaseRef { key: run.key, token: run.lease.token }).collect()
            }
        };
        let mut undone = 0;
        for part in refs.chunks(limit::CALL_JOBS_MAX) {
            let mut call = self.call(Verb::Unclaim);
            call.arg("");
            part.iter().for_each(|lease| add_lease(&mut call, lease));
            let mut reply = self.run(Lane::Write, &call).await?;
            self.hints.prune_at(reply.maybe_time()?);
            undone += reply.count()?;
        }
        Ok(undone)
    }

    /// Makes sure that a claim whose answer was lost takes nothing if it arrives only now: Redis may read
    /// what an old connection has sent after what came by a new one.
    async fn give_up(&self, nonce: u32) -> Result<()> {
        let mut call = self.call(Verb::Unclaim);
        call.arg(void(nonce).as_slice());
        self.run(Lane::Write, &call).await.map(drop)
    }
}

/// The name of a claim that was given up; nothing else in its place begins with 0.
fn void(nonce: u32) -> [u8; 5] {
    let [a, b, c, d] = nonce.to_be_bytes();
    [0, a, b, c, d]
}

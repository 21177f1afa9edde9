//! Unclaim: undo leases that reached nobody, one by one or all of a claim whose answer was lost.

use crate::domain::engine::{Answer, Command};
use crate::store::{LeaseRef, LostClaim, Result, Unclaim, Undone};

use super::apply::{Outcome, Request};
use super::script::Verb;
use super::upkeep::FIRST;
use super::{Lane, RedisStore};

impl RedisStore {
    /// [`Store::unclaim`](crate::store::Store::unclaim).
    pub(super) async fn unclaim(&self, what: Unclaim) -> Result<Undone> {
        let (refs, next) = match what {
            Unclaim::Leases(refs) => (refs, None),
            Unclaim::Claim(lost) => self.search(&lost).await?,
        };
        Ok(Undone { leases: self.undo(&refs).await?, next })
    }

    /// The next part of the search for the leases of a lost claim: those found, and where the part after it begins.
    /// The first part only gives the claim up.
    async fn search(&self, lost: &LostClaim) -> Result<(Vec<LeaseRef>, Option<String>)> {
        let Some(from) = &lost.from else {
            self.give_up(lost.nonce).await?;
            let begin = (!lost.topics.is_empty()).then(|| place(0, FIRST));
            return Ok((Vec::new(), begin));
        };
        let at =
            from.split_once(' ').and_then(|(index, cursor)| Some((index.parse().ok()?, cursor)));
        let (index, cursor): (usize, &str) = at.unwrap_or((0, FIRST));
        let Some(topic) = lost.topics.get(index) else { return Ok((Vec::new(), None)) };
        let part = self.running_part(topic, cursor.as_bytes()).await?;
        let mine = part.runs.into_iter().filter(|run| run.lease.token.nonce() == lost.nonce);
        let refs = mine.map(|run| LeaseRef { key: run.key, token: run.lease.token }).collect();
        let next = match part.next {
            Some(cursor) => Some(place(index, &String::from_utf8_lossy(&cursor))),
            None => (index + 1 < lost.topics.len()).then(|| place(index + 1, FIRST)),
        };
        Ok((refs, next))
    }

    async fn undo(&self, refs: &[LeaseRef]) -> Result<u64> {
        if refs.is_empty() {
            // It is how a shard is asked whether it takes writes.
            return self.run_raw(Lane::Write, &self.call(Verb::Commit)).await.map(|_| 0);
        }
        let request = |LeaseRef { key, token }: &LeaseRef| Request {
            key: key.clone(),
            command: Command::Unclaim(*token),
            until: None,
        };
        let requests: Vec<_> = refs.iter().map(request).collect();
        let undone = self.apply_all(&requests).await?;
        let is_done = |outcome: &Outcome| outcome.answer == Answer::Done(true);
        Ok(undone.iter().filter(|outcome| is_done(outcome)).count() as u64)
    }

    /// Makes sure that a claim whose answer was lost takes nothing if it arrives only now: Redis may read
    /// what an old connection has sent after what came by a new one.
    async fn give_up(&self, nonce: u32) -> Result<()> {
        let mut call = self.call(Verb::Void);
        call.arg(void(nonce).as_slice());
        self.run_raw(Lane::Write, &call).await.map(drop)
    }
}

/// Where the search is: in the topic of that index, at that cursor.
fn place(index: usize, cursor: &str) -> String {
    format!("{index} {cursor}")
}

/// The name of a claim that was given up; nothing else in its place begins with 0.
fn void(nonce: u32) -> [u8; 5] {
    let [a, b, c, d] = nonce.to_be_bytes();
    [0, a, b, c, d]
}

//! One question to several shards at once. Who does not answer in time is left out and named, so that
//! a shard that hangs does not hang those who ask about all of them.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::domain::ShardName;

use super::{Result, Shard, ShardError, Shards};

/// What shards answered, in the order in which they were asked.
pub struct Spread<T> {
    /// Those that did.
    pub answers: Vec<(Shard, T)>,
    /// Those that did not.
    pub failed: Vec<ShardError>,
}

/// What there is of an answer, and the names of those that did not answer.
pub type Partial<T> = (Vec<(Shard, T)>, Vec<ShardName>);

// === impl Shards ===

impl Shards {
    /// Asks every shard.
    pub async fn ask_all<T: Send + 'static, F>(&self, ask: impl Fn(Shard) -> F) -> Spread<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let asks = self.all().iter().map(|shard| (shard.clone(), ())).collect();
        self.ask_each(asks, |shard, ()| ask(shard)).await
    }

    /// Asks each of these shards its own question. A question goes on after nobody waits for it any
    /// more, until it is answered or late: that is how a shard that hangs is found out.
    pub async fn ask_each<Q, T: Send + 'static, F>(
        &self,
        asks: Vec<(Shard, Q)>,
        ask: impl Fn(Shard, Q) -> F,
    ) -> Spread<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let begin = Instant::now();
        let mut answers: Vec<(Shard, Option<Result<T>>)> = Vec::with_capacity(asks.len());
        let mut open = FuturesUnordered::new();
        for (index, (shard, question)) in asks.into_iter().enumerate() {
            answers.push((shard.clone(), None));
            let asked = tokio::spawn(ask(shard, question));
            open.push(async move { (index, asked.await) });
        }
        let mut limit = None;
        loop {
            let next = async {
                match limit {
                    Some(limit) => tokio::time::timeout_at(limit, open.next()).await.ok().flatten(),
                    None => open.next().await,
                }
            };
            let Some((index, answer)) = next.await else { break };
            let lost =
                |_| Err(ShardError::unknown(answers[index].0.name(), "the call was dropped"));
            let answer = answer.unwrap_or_else(lost);
            if answer.is_ok() {
                limit.get_or_insert(begin + self.inner.patience.others);
            }
            answers[index].1 = Some(answer);
        }
        Spread::of(answers)
    }
}

// === impl Spread ===

impl<T> Spread<T> {
    fn of(found: Vec<(Shard, Option<Result<T>>)>) -> Spread<T> {
        let mut spread = Spread { answers: Vec::new(), failed: Vec::new() };
        for (shard, answer) in found {
            let slow = || Err(ShardError::unavailable(shard.name(), "it has not answered yet"));
            match answer.unwrap_or_else(slow) {
                Ok(answer) => spread.answers.push((shard, answer)),
                Err(error) => spread.failed.push(error),
            }
        }
        spread
    }

    /// What there is, and the names of those that did not answer.
    ///
    /// # Errors
    /// When nobody has answered: that of the first one.
    pub fn partial(self) -> Result<Partial<T>> {
        match self.failed.first() {
            Some(error) if self.answers.is_empty() => Err(error.clone()),
            _ => {
                let unreachable = self.failed.into_iter().map(|failed| failed.shard);
                Ok((self.answers, unreachable.collect()))
            }
        }
    }
}

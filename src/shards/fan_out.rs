//! One question to several shards at once. Who does not answer in time is left out and named, so that
//! a shard that hangs does not hang those who ask about all of them.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::domain::ShardName;

use super::{Result, Shard, ShardError, Shards};

/// What shards answered, in the order in which they were asked.
pub struct FanOut<T> {
    /// Those that did.
    pub answers: Vec<(Shard, T)>,
    /// Those that did not.
    pub failed: Vec<ShardError>,
}

/// What there is of an answer, and the names of those that did not answer.
pub type PartialAnswers<T> = (Vec<(Shard, T)>, Vec<ShardName>);

// === impl Shards ===

impl Shards {
    /// Asks every shard.
    pub async fn call_all<T: Send + 'static, F>(&self, ask: impl Fn(Shard) -> F) -> FanOut<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let asks = self.all().iter().map(|shard| (shard.clone(), ())).collect();
        self.call_each(asks, |shard, ()| ask(shard)).await
    }

    /// Asks each of these shards its own question. A question goes on after nobody waits for it any
    /// more, until it is answered or late: that is how a shard that hangs is found out.
    pub async fn call_each<Q, T: Send + 'static, F>(
        &self,
        asks: Vec<(Shard, Q)>,
        ask: impl Fn(Shard, Q) -> F,
    ) -> FanOut<T>
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
                limit.get_or_insert(begin + self.inner.timeouts.fan_out);
            }
            answers[index].1 = Some(answer);
        }
        FanOut::collect(answers)
    }
}

// === impl Spread ===

impl<T> FanOut<T> {
    fn collect(found: Vec<(Shard, Option<Result<T>>)>) -> FanOut<T> {
        let mut spread = FanOut { answers: Vec::new(), failed: Vec::new() };
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
    pub fn into_partial(self) -> Result<PartialAnswers<T>> {
        match self.failed.first() {
            Some(error) if self.answers.is_empty() => Err(error.clone()),
            _ => {
                let unreachable = self.failed.into_iter().map(|failed| failed.shard);
                Ok((self.answers, unreachable.collect()))
            }
        }
    }
}

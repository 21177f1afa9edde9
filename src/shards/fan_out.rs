//! Fan-out: one call to several shards at once. A shard that does not answer in time is left out and named, so that a
//! shard that hangs does not block callers that ask all of them.

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::domain::ShardName;

use super::{Result, Shard, ShardError, Shards};

/// Answers of shards, in the order of the calls.
pub struct FanOut<T> {
    /// Shards that answered, with their answers.
    pub answers: Vec<(Shard, T)>,
    /// Errors of the shards that did not answer.
    pub failed: Vec<ShardError>,
}

/// Available answers, and the names of the shards that did not answer.
pub type PartialAnswers<T> = (Vec<(Shard, T)>, Vec<ShardName>);

// === impl Shards ===

impl Shards {
    /// Calls every shard.
    pub async fn call_all<T: Send + 'static, F>(&self, ask: impl Fn(Shard) -> F) -> FanOut<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let asks = self.all().iter().map(|shard| (shard.clone(), ())).collect();
        self.call_each(asks, |shard, ()| ask(shard)).await
    }

    /// Calls each of these shards with its own question. A call goes on after the fan-out has stopped waiting, until
    /// it is answered or late: this detects a shard that hangs.
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

// === impl FanOut ===

impl<T> FanOut<T> {
    fn collect(found: Vec<(Shard, Option<Result<T>>)>) -> FanOut<T> {
        let mut spread = FanOut { answers: Vec::new(), failed: Vec::new() };
        for (shard, answer) in found {
            let slow =
                || Err(ShardError::unavailable(shard.name(), "the shard has not answered yet"));
            match answer.unwrap_or_else(slow) {
                Ok(answer) => spread.answers.push((shard, answer)),
                Err(error) => spread.failed.push(error),
            }
        }
        spread
    }

    /// Returns the available answers, and the names of the shards that did not answer.
    ///
    /// # Errors
    /// The error of the first shard, if none has answered.
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

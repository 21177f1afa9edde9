//! What it takes to call scripts on one Redis, and to know that it is the right one.

use deadpool_redis::redis::{Cmd, FromRedisValue, Value};

use crate::clock::Clock;
use crate::domain::{ShardName, TopicName, limit};
use crate::store::{Error, Result, Topic};

use super::link::{Connection, Lane, Link};
use super::reply::Reply;
use super::script::{Call, Scripts, Verb};
use super::start::{FORMAT, OpenError};
use super::{claim, fault};

/// A Redis that has been checked.
pub(super) struct Shard {
    pub(super) link: Link,
    pub(super) scripts: Scripts,
    pub(super) name: ShardName,
    pub(super) clock: Clock,
}

// === impl Shard: calls ===

impl Shard {
    pub(super) fn call(&self, verb: Verb) -> Call {
        self.scripts.call(verb, self.driven())
    }

    /// The time, where a test drives it.
    fn driven(&self) -> Option<i64> {
        match &self.clock {
            Clock::System(_) => None,
            Clock::Manual(clock) => Some(clock.now().0),
        }
    }

    /// Runs a call on a connection of `lane`.
    pub(super) async fn run(&self, lane: Lane, call: &Call) -> Result<Value> {
        let mut connection = self.connection(lane).await?;
        self.scripts.run(&mut connection, call).await.map_err(|error| {
            self.link.failed(lane, &error);
            fault::of_call(&error, call.verb().only_reads())
        })
    }

    /// Runs a call on a connection of one's own.
    pub(super) async fn run_on(&self, connection: &mut Connection, call: &Call) -> Result<Value> {
        let answer = self.scripts.run(connection, call).await;
        answer.map_err(|error| fault::of_call(&error, call.verb().only_reads()))
    }

    async fn run_list(&self, lane: Lane, call: &Call) -> Result<Reply> {
        Reply::new(self.run(lane, call).await?)
    }

    /// Runs a plain command that writes nothing.
    pub(super) async fn ask<T: FromRedisValue>(&self, lane: Lane, command: &Cmd) -> Result<T> {
        let mut connection = self.connection(lane).await?;
        command.query_async(&mut connection).await.map_err(|error| {
            self.link.failed(lane, &error);
            fault::of_call(&error, true)
        })
    }

    /// A connection of `lane`. A new one is asked first whether it leads to this shard: an address may
    /// come to stand for another Redis.
    pub(super) async fn connection(&self, lane: Lane) -> Result<Connection> {
        let is_ours = async |connection: &mut Connection| {
            let answer = self.ask_name(connection).await;
            answer.map_err(|error| Error::Unavailable(error.to_string())).map(drop)
        };
        self.link.get(lane, is_ours).await
    }

    /// A connection of one's own, which leads to this shard.
    pub(super) async fn own_connection(&self) -> Result<deadpool_redis::Connection> {
        let mut connection = self.link.own().await?;
        match self.mark(&mut connection).await {
            Ok(()) => Ok(connection),
            Err(error) => {
                drop(deadpool_redis::Connection::take(connection));
                Err(Error::Unavailable(error.to_string()))
            }
        }
    }

    /// Writes by `connection`, and makes sure of the shard: whoever waits for that waits for everything
    /// that was written before, by whomever.
    pub(super) async fn mark(
        &self,
        connection: &mut Connection,
    ) -> std::result::Result<(), OpenError> {
        if self.ask_name(connection).await? {
            self.make_due().await?;
        }
        Ok(())
    }
}

// === impl Shard: identity ===

impl Shard {
    /// Makes sure of the shard's name, and that no job waits for a clock that went back.
    pub(super) async fn identify(&self) -> std::result::Result<(), OpenError> {
        let mut connection = self.connection(Lane::Write).await?;
        self.mark(&mut connection).await
    }

    async fn make_due(&self) -> Result<()> {
        let healed = self.heal().await?;
        tracing::warn!(shard = %self.name, healed, "the clock went back; undelayed jobs are due now");
        Ok(())
    }

    /// Writes the shard's name at first contact and compares it ever after; whether the clock is behind
    /// what was noted last.
    async fn ask_name(&self, connection: &mut Connection) -> std::result::Result<bool, OpenError> {
        let mut call = self.call(Verb::Open);
        call.arg(self.name.as_str()).arg(FORMAT);
        let answer = self.scripts.run(connection, &call).await;
        let mut reply = Reply::new(answer.map_err(|error| fault::of_call(&error, true))?)?;
        let (found, format) = (reply.text()?, reply.number()?);
        if found != self.name.as_str() {
            return Err(OpenError::OtherName { found, asked: self.name.to_string() });
        }
        if format > FORMAT {
            return Err(OpenError::Newer { found: format });
        }
        let (before, now) = (reply.time()?, reply.time()?);
        Ok(now < before)
    }

    /// Makes every job that was enqueued without a delay due now, after the clock went back.
    async fn heal(&self) -> Result<u64> {
        let mut healed = 0;
        for topic in self.all_topics().await? {
            for priority in 0..=limit::PRIORITY_MAX {
                let mut passed = 0;
                loop {
                    let mut call = self.call(Verb::Heal);
                    call.arg(topic.as_str()).arg(priority).arg(passed).arg(limit::CALL_JOBS_MAX);
                    let mut reply = self.run_list(Lane::Write, &call).await?;
                    let (seen, due) = (reply.count()?, reply.count()?);
                    (healed, passed) = (healed + due, passed + seen - due);
                    if seen == 0 {
                        break;
                    }
                }
            }
        }
        Ok(healed)
    }
}

// === impl Shard: topics ===

impl Shard {
    /// Topics from a place on, and how many records each has.
    pub(super) async fn topics_from(&self, place: &str, limit: usize) -> Result<Vec<(Topic, u64)>> {
        let mut call = self.call(Verb::Topics);
        call.arg(place).arg(limit);
        let mut reply = self.run_list(Lane::Read, &call).await?;
        let mut topics = Vec::new();
        while !reply.is_empty() {
            let name = claim::topic(&reply.text()?);
            topics.push((Topic { name, create_time: reply.time()? }, reply.count()?));
        }
        Ok(topics)
    }

    /// Every topic, in portions, with how many records each has.
    pub(super) async fn topics_with_records(&self) -> Result<Vec<(Topic, u64)>> {
        let (mut all, mut place) = (Vec::new(), "-".to_owned());
        loop {
            let part = self.topics_from(&place, limit::CALL_JOBS_MAX).await?;
            let full = part.len() == limit::CALL_JOBS_MAX;
            all.extend(part);
            match all.last() {
                Some((last, _)) if full => place = format!("({}", last.name),
                _ => return Ok(all),
            }
        }
    }

    /// The names of all topics.
    pub(super) async fn all_topics(&self) -> Result<Vec<TopicName>> {
        Ok(self.topics_with_records().await?.into_iter().map(|(topic, _)| topic.name).collect())
    }
}

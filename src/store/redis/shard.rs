//! What it takes to call scripts on one Redis, and to know that it is the right one.

use std::sync::atomic::{AtomicBool, Ordering};

use std::time::Duration;

use deadpool_redis::redis::{self, Cmd, FromRedisValue, RedisError, Value};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::domain::{ShardName, Time, TopicName, limit};
use crate::store::{Error, Result, TopicInfo};

use super::check::{self, FORMAT, FORMAT_MIN, RedisOpenError};
use super::connections::{ConnectionLane, RedisConnection, RedisConnections};
use super::reply::ScriptReply;
use super::script::{ExecutionTime, ScriptCall, Scripts, Verb, commands};
use super::status::RedisStatus;
use super::url::DEFAULT_USER;
use super::write_window::{RedisClock, WINDOW_MAX};
use super::{error_mapping, keys};

/// What is called outside of scripts and may be forbidden.
const SUBSCRIBE: &str = "SUBSCRIBE";
/// A step of Redis's clock that is logged: a shorter one changes nothing that an operator could notice.
const CLOCK_STEP_LOGGED_MIN: Duration = Duration::from_millis(100);

/// One Redis. No call reaches it before it has been checked.
pub(super) struct RedisShard {
    pub(super) connections: RedisConnections,
    pub(super) status: RedisStatus,
    /// Whether the clock went back since jobs were last put right for that.
    clock_went_back: AtomicBool,
    scripts: Scripts,
    pub(super) name: ShardName,
    /// Nonce of this replica.
    pub(super) owner: u32,
    pub(super) clock: Clock,
    redis_clock: RedisClock,
}

// === impl Shard: calls ===

impl RedisShard {
    /// Nothing is connected yet.
    pub(super) fn new(
        name: ShardName,
        owner: u32,
        link: RedisConnections,
        clock: Clock,
    ) -> RedisShard {
        RedisShard {
            connections: link,
            status: RedisStatus::new(),
            clock_went_back: AtomicBool::new(false),
            scripts: Scripts::new(keys::prefix(&name), keys::caller(&name, owner)),
            name,
            owner,
            clock,
            redis_clock: RedisClock::new(),
        }
    }

    pub(super) fn call(&self, verb: Verb) -> ScriptCall {
        self.large_call(verb, 0, 0)
    }

    /// A call that gets so many arguments of so many bytes, about: it is not copied while it grows.
    pub(super) fn large_call(&self, verb: Verb, args: usize, bytes: usize) -> ScriptCall {
        let at = self.test_time().map_or(ExecutionTime::Always, ExecutionTime::TestClock);
        self.scripts.call(verb, at, (args, bytes))
    }

    /// A call of a verb that writes and that no lease token guards: Redis executes it until `until`, and within
    /// [`WINDOW_MAX`] (`write_window.rs`).
    pub(super) async fn write_call(
        &self,
        verb: Verb,
        until: Option<Instant>,
    ) -> Result<ScriptCall> {
        self.large_write_call(verb, until, 0, 0).await
    }

    /// [`Shard::write_call`], as [`Shard::large_call`] is to [`Shard::call`].
    pub(super) async fn large_write_call(
        &self,
        verb: Verb,
        until: Option<Instant>,
        args: usize,
        bytes: usize,
    ) -> Result<ScriptCall> {
        // Where a test drives the clock, calls that are held back show the time at which they were made.
        if self.test_time().is_some() {
            return Ok(self.large_call(verb, args, bytes));
        }
        let longest = Instant::now() + WINDOW_MAX;
        let last = until.map_or(longest, |until| until.min(longest));
        let latest = match self.redis_clock.at(last) {
            Some(latest) => latest,
            None => {
                // A new connection shows it.
                self.connection(ConnectionLane::Write).await?;
                let unknown = || Error::Unavailable("the clock of redis is not known".to_owned());
                self.redis_clock.at(last).ok_or_else(unknown)?
            }
        };
        let call = self.scripts.call(verb, ExecutionTime::Until(latest), (args, bytes));
        Ok(call.with_window_end(last))
    }

    /// The time, where a test drives it.
    fn test_time(&self) -> Option<Time> {
        match &self.clock {
            Clock::System(_) => None,
            Clock::Manual(clock) => Some(clock.now()),
        }
    }

    /// Runs a call on a connection of `lane`.
    pub(super) async fn run(&self, lane: ConnectionLane, call: &ScriptCall) -> Result<Value> {
        let mut connection = self.connection(lane).await?;
        let under_way = self.connections.begin(lane);
        let answer = self.execute(&mut connection, call).await;
        under_way.end();
        match answer {
            Ok(value) => Ok(value),
            Err(error) => {
                self.connections.failed(lane, &error);
                Err(settled_error(call, &error).await)
            }
        }
    }

    /// Runs a call on a connection of one's own.
    pub(super) async fn run_on(
        &self,
        connection: &mut RedisConnection,
        call: &ScriptCall,
    ) -> Result<Value> {
        match self.execute(connection, call).await {
            Ok(value) => Ok(value),
            Err(error) => Err(settled_error(call, &error).await),
        }
    }

    /// Runs a call. One that was refused because the clock of Redis stepped forward is sent again with the new time.
    async fn execute(
        &self,
        connection: &mut RedisConnection,
        call: &ScriptCall,
    ) -> std::result::Result<Value, RedisError> {
        let sent = Instant::now();
        let answer = self.scripts.run(connection, call).await;
        match &answer {
            Ok(value) if call.verb().answers_time() => {
                if let Some(shown) = leading_time(value) {
                    self.observe_clock(sent, shown);
                }
            }
            Ok(_) => {}
            Err(error) => {
                let Some(shown) = error_mapping::refused_late_at(error) else { return answer };
                self.observe_clock(sent, shown);
                let last = call.window_end().filter(|&last| last > Instant::now());
                if let Some(latest) = last.and_then(|last| self.redis_clock.at(last)) {
                    return self.scripts.run(connection, &call.with_execution_end(latest)).await;
                }
            }
        }
        answer
    }

    /// Takes in what the clock of Redis showed in the answer of a call.
    fn observe_clock(&self, sent: Instant, shown: Time) {
        let Some(step) = self.redis_clock.observe(sent, shown) else { return };
        let (shard, by) = (&self.name, Duration::from_micros(step.unsigned_abs()));
        if by < CLOCK_STEP_LOGGED_MIN {
            tracing::debug!(%shard, ?by, forward = step > 0, "the clock of redis stepped");
        } else if step > 0 {
            tracing::warn!(%shard, ?by, "the clock of redis stepped forward; writes under way are sent again");
        } else {
            tracing::warn!(
                %shard,
                ?by,
                "the clock of redis stepped back; a write that was sent before may be executed later by as much"
            );
        }
    }

    async fn run_list(&self, lane: ConnectionLane, call: &ScriptCall) -> Result<ScriptReply> {
        ScriptReply::new(self.run(lane, call).await?)
    }

    /// Runs a plain command that writes nothing.
    pub(super) async fn command<T: FromRedisValue>(
        &self,
        lane: ConnectionLane,
        command: &Cmd,
    ) -> Result<T> {
        let mut connection = self.connection(lane).await?;
        let under_way = self.connections.begin(lane);
        let answer = command.query_async(&mut connection).await;
        under_way.end();
        answer.map_err(|error| {
            self.connections.failed(lane, &error);
            error_mapping::call_error(&error, true)
        })
    }

    /// A connection of `lane`. A new one is asked first whether it leads to this shard, and to one that can
    /// be used: an address may come to stand for another Redis, and the same one comes back another.
    pub(super) async fn connection(&self, lane: ConnectionLane) -> Result<RedisConnection> {
        let connected = self.connect(lane).await;
        connected.map_err(|error| Error::Unavailable(error.to_string()))
    }

    /// A connection of one's own, which leads to this shard.
    pub(super) async fn dedicated_connection(&self) -> Result<deadpool_redis::Connection> {
        // Each time: what waiting for it means depends on the process that answers.
        let examine =
            async |connection: &mut RedisConnection| self.check_connection(connection).await;
        let own = self.connections.connect(None, examine).await;
        own.map_err(|error| Error::Unavailable(error.to_string()))
    }

    /// Writes by `connection`, and makes sure of the shard: whoever waits for that waits for everything
    /// that was written before, by whomever.
    pub(super) async fn write_and_check_name(
        &self,
        connection: &mut RedisConnection,
    ) -> std::result::Result<(), RedisOpenError> {
        self.check_name(connection, false).await
    }

    async fn connect(
        &self,
        lane: ConnectionLane,
    ) -> std::result::Result<RedisConnection, RedisOpenError> {
        let examine =
            async |connection: &mut RedisConnection| self.check_connection(connection).await;
        let connected = self.connections.get(lane, examine).await;
        if let Err(error) = &connected {
            self.status.failed(error);
        }
        connected
    }
}

// === impl Shard: identity ===

impl RedisShard {
    /// Makes sure of the shard's name, and that no job waits for a clock that went back.
    pub(super) async fn identify(&self) -> std::result::Result<(), RedisOpenError> {
        let mut connection = self.connect(ConnectionLane::Write).await?;
        self.check_name(&mut connection, false).await?;
        if self.clock_went_back.swap(false, Ordering::Relaxed) {
            match self.make_undelayed_due().await {
                Ok(healed) => {
                    tracing::warn!(shard = %self.name, healed, "the clock went back; undelayed jobs are due now");
                }
                Err(error) => {
                    self.clock_went_back.store(true, Ordering::Relaxed);
                    tracing::error!(shard = %self.name, %error, "the clock went back, and jobs that are due wait for it");
                }
            }
        }
        Ok(())
    }

    /// Whether a new connection leads to this shard, and to a Redis that can be used.
    async fn check_connection(
        &self,
        connection: &mut RedisConnection,
    ) -> std::result::Result<(), RedisOpenError> {
        let told = redis::cmd("INFO").query_async::<String>(connection).await;
        let info = told.map_err(|error| error_mapping::info_error(&error))?;
        match check::check(&info) {
            // Sentinel names a new primary a moment before that one knows.
            Err(RedisOpenError::Replica) if self.connections.route().sentinels() > 0 => {
                let text = "the primary that sentinel names is a replica, a failover is under way";
                return Err(RedisOpenError::Unreachable(text.to_owned()));
            }
            checked => self.scripts.set_major_version(checked?),
        }
        // Not before: a sentinel asks for no password as a rule.
        self.check_login(connection).await?;
        match check::evicts(&info) {
            // One that was safe once has jobs that can still be finished.
            Some(policy) if !self.status.is_known() => {
                return Err(RedisOpenError::EvictionPolicy(policy));
            }
            policy => self.status.set_eviction_policy(policy),
        }
        self.check_name(connection, true).await?;
        self.status.connected(&info);
        Ok(())
    }

    /// Whether a password is needed where one is given. A Redis that lets in everybody is not what whoever wrote
    /// the url had in mind. One that was right once, and came back without its password, is used all the same.
    async fn check_login(
        &self,
        connection: &mut RedisConnection,
    ) -> std::result::Result<(), RedisOpenError> {
        let login = &self.connections.route().address.login;
        let is_asked = login.username() == Some(DEFAULT_USER) && !self.status.is_known();
        let Some(password) = login.password().filter(|_| is_asked) else { return Ok(()) };
        // Without the name, which is what makes it an error.
        match redis::cmd("AUTH").arg(password).query_async::<()>(connection).await {
            Err(error) if error.to_string().contains("without any password") => {
                Err(RedisOpenError::NeedlessPassword)
            }
            _ => Ok(()),
        }
    }

    /// Writes the shard's name at first contact and compares it ever after; sees whether the clock is
    /// behind what was noted last.
    async fn check_name(
        &self,
        connection: &mut RedisConnection,
        is_new: bool,
    ) -> std::result::Result<(), RedisOpenError> {
        let mut call = self.call(Verb::Open);
        call.arg(self.name.as_str()).arg(FORMAT).arg(FORMAT_MIN);
        // Of each connection once.
        for command in commands().chain([SUBSCRIBE]).filter(|_| is_new) {
            call.arg(command);
        }
        let sent = Instant::now();
        let answer = self.scripts.run(connection, &call).await;
        let mut reply =
            ScriptReply::new(answer.map_err(|error| error_mapping::call_error(&error, true))?)?;
        let (found, format) = (reply.text()?, reply.number()?);
        let (before, now, refused) = (reply.time()?, reply.time()?, reply.text()?);
        self.observe_clock(sent, now);
        if !refused.is_empty() {
            return Err(RedisOpenError::MissingPermission(error_mapping::one_line(&refused)));
        }
        if found != self.name.as_str() {
            let found = error_mapping::one_line(&found);
            return Err(RedisOpenError::WrongShardName { found, asked: self.name.to_string() });
        }
        if format > FORMAT {
            return Err(RedisOpenError::Newer { found: format });
        }
        if format < FORMAT_MIN {
            return Err(RedisOpenError::Older { found: format });
        }
        if now < before {
            self.clock_went_back.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes every job that was enqueued without a delay due now, after the clock went back.
    async fn make_undelayed_due(&self) -> Result<u64> {
        let (mut healed, mut due) = (0, String::new());
        for topic in self.all_topics().await? {
            for priority in 0..=limit::PRIORITY_MAX {
                let mut after = [String::new(), String::new()];
                loop {
                    let mut call = self.call(Verb::Heal);
                    call.arg(topic.as_str())
                        .arg(priority)
                        .arg(&after[0])
                        .arg(&after[1])
                        .arg(limit::CALL_JOBS_MAX)
                        .arg(&due);
                    let mut reply = self.run_list(ConnectionLane::Write, &call).await?;
                    let seen = reply.count()?;
                    healed += reply.count()?;
                    due = reply.number()?.to_string();
                    after = [reply.text()?, reply.text()?];
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

impl RedisShard {
    /// So many topics from a place on, in parts, and how many records each has.
    pub(super) async fn topics_from(
        &self,
        mut place: String,
        limit: usize,
    ) -> Result<Vec<(TopicInfo, u64)>> {
        let mut topics = Vec::new();
        loop {
            let size = (limit - topics.len()).min(limit::PART_MAX);
            let part = self.topics_page(&place, size).await?;
            let full = part.len() == size;
            topics.extend(part);
            match topics.last() {
                Some((last, _)) if full && topics.len() < limit => {
                    place = format!("({}", last.name)
                }
                _ => return Ok(topics),
            }
        }
    }

    async fn topics_page(&self, place: &str, size: usize) -> Result<Vec<(TopicInfo, u64)>> {
        let mut call = self.call(Verb::Topics);
        call.arg(place).arg(size);
        let mut reply = self.run_list(ConnectionLane::Read, &call).await?;
        let mut topics = Vec::new();
        while !reply.is_empty() {
            let name = TopicName::stored(&reply.text()?);
            topics.push((TopicInfo { name, create_time: reply.time()? }, reply.count()?));
        }
        Ok(topics)
    }

    /// Every topic, and how many records each has.
    pub(super) async fn topics_with_records(&self) -> Result<Vec<(TopicInfo, u64)>> {
        self.topics_from("-".to_owned(), usize::MAX).await
    }

    /// The names of all topics.
    pub(super) async fn all_topics(&self) -> Result<Vec<TopicName>> {
        Ok(self.topics_with_records().await?.into_iter().map(|(topic, _)| topic.name).collect())
    }
}

/// What the error of a call means, once its outcome cannot change any more: until the window of a write ends, what was
/// sent may still be executed.
async fn settled_error(call: &ScriptCall, error: &RedisError) -> Error {
    let error = error_mapping::call_error(error, call.verb().only_reads());
    if let (true, Some(last)) = (error.outcome_unknown(), call.window_end()) {
        tokio::time::sleep_until(last).await;
    }
    error
}

/// The time that an answer begins with, or is.
fn leading_time(value: &Value) -> Option<Time> {
    match value {
        Value::Int(now) => Some(Time(*now)),
        Value::Array(values) => match values.first() {
            Some(Value::Int(now)) => Some(Time(*now)),
            _ => None,
        },
        _ => None,
    }
}

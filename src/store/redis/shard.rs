//! Connection to one Redis: calls scripts on it, and checks that it is the right one.

use std::sync::atomic::{AtomicBool, Ordering};

use std::time::Duration;

use deadpool_redis::redis::{self, Cmd, FromRedisValue, RedisError, Value};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::domain::{ShardName, Time, TopicName, limit};
use crate::store::{Error, Result, TopicInfo};

use super::check::{self, FORMAT, FORMAT_MIN, RedisOpenError};
use super::connections::{ConnectionLane, PendingCall, RedisConnection, RedisConnections};
use super::receipt_key::SharedReceiptKey;
use super::reply::ScriptReply;
use super::script::{ExecutionTime, ScriptCall, Scripts, Verb, commands};
use super::status::RedisStatus;
use super::url::DEFAULT_USER;
use super::write_window::{RedisClock, WINDOW_MAX};
use super::{error_mapping, keys};

/// Command that is called outside of scripts and may be forbidden.
const SUBSCRIBE: &str = "SUBSCRIBE";
/// Maximum number of calls under way; more wait in their callers.
const CALLS_MAX: u32 = 4_096;
/// Minimum step of Redis's clock that is logged: a shorter one has no effect that an operator could notice.
const CLOCK_STEP_LOGGED_MIN: Duration = Duration::from_millis(100);

/// Connection to one Redis. No call is sent before the Redis has been checked.
pub(super) struct RedisShard {
    pub(super) connections: RedisConnections,
    pub(super) status: RedisStatus,
    /// The clock went back, and undelayed jobs were not made due yet.
    clock_went_back: AtomicBool,
    scripts: Scripts,
    pub(super) name: ShardName,
    /// Nonce of this replica.
    pub(super) owner: u32,
    pub(super) clock: Clock,
    redis_clock: RedisClock,
    pub(super) receipt_key: SharedReceiptKey,
    /// Permits, one per call under way; closed with the store.
    call_permits: Semaphore,
}

// === impl RedisShard: calls ===

impl RedisShard {
    /// Returns a shard without connections.
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
            receipt_key: SharedReceiptKey::new(),
            call_permits: Semaphore::new(CALLS_MAX as usize),
        }
    }

    pub(super) fn call(&self, verb: Verb) -> ScriptCall {
        self.large_call(verb, 0, 0)
    }

    /// Starts a call with about this number of arguments and bytes: it is not copied while it grows.
    pub(super) fn large_call(&self, verb: Verb, args: usize, bytes: usize) -> ScriptCall {
        let at = self.test_time().map_or(ExecutionTime::Always, ExecutionTime::TestClock);
        self.scripts.call(verb, at, (args, bytes))
    }

    /// Starts a call of a verb that writes and that no lease token guards: Redis executes it until `until`, and
    /// within [`WINDOW_MAX`] (`write_window.rs`).
    pub(super) async fn write_call(
        &self,
        verb: Verb,
        until: Option<Instant>,
    ) -> Result<ScriptCall> {
        self.large_write_call(verb, until, 0, 0).await
    }

    /// Starts a [`RedisShard::write_call`] with the size of a [`RedisShard::large_call`].
    pub(super) async fn large_write_call(
        &self,
        verb: Verb,
        until: Option<Instant>,
        args: usize,
        bytes: usize,
    ) -> Result<ScriptCall> {
        // Where a test drives the clock, delayed calls have the time at which they were made.
        if self.test_time().is_some() {
            return Ok(self.large_call(verb, args, bytes));
        }
        let longest = Instant::now() + WINDOW_MAX;
        let last = until.map_or(longest, |until| until.min(longest));
        let latest = match self.redis_clock.at(last) {
            Some(latest) => latest,
            None => {
                // A new connection sets the clock.
                self.connection(ConnectionLane::Write).await?;
                let text = "redis did not report its time; nothing was written";
                let unknown = || Error::Unavailable(text.to_owned());
                self.redis_clock.at(last).ok_or_else(unknown)?
            }
        };
        let call = self.scripts.call(verb, ExecutionTime::Until(latest), (args, bytes));
        Ok(call.with_window_end(last))
    }

    /// Time of a clock that a test drives.
    fn test_time(&self) -> Option<Time> {
        match &self.clock {
            Clock::System(_) => None,
            Clock::Manual(clock) => Some(clock.now()),
        }
    }

    /// Counts a call under way; rejected once the store is closed.
    pub(super) async fn permit(&self) -> Result<SemaphorePermit<'_>> {
        let permit = self.call_permits.acquire().await;
        permit.map_err(|_| Error::Unavailable("the store is closed".into()))
    }

    /// Waits for the calls under way, for `within` at most, and rejects all later ones. Returns whether all have ended.
    pub(super) async fn close(&self, within: Duration) -> bool {
        let all = self.call_permits.acquire_many(CALLS_MAX);
        let is_idle = tokio::time::timeout(within, all).await.is_ok();
        self.call_permits.close();
        is_idle
    }

    /// Runs a call on a connection of `lane`.
    pub(super) async fn run(&self, lane: ConnectionLane, call: &ScriptCall) -> Result<Value> {
        self.run_on(None, lane, call).await
    }

    /// Runs a call on the dedicated connection, or else on one of `lane`. A call that was rejected because the clock of
    /// Redis stepped forward is sent again with the new time.
    pub(super) async fn run_on(
        &self,
        dedicated: Option<&mut RedisConnection>,
        lane: ConnectionLane,
        call: &ScriptCall,
    ) -> Result<Value> {
        let is_dedicated = dedicated.is_some();
        let mut shared;
        let _permit;
        let under_way;
        let connection = match dedicated {
            Some(connection) => {
                under_way = None;
                connection
            }
            None => {
                _permit = self.permit().await?;
                shared = self.connection(lane).await?;
                under_way = Some(self.connections.begin(lane));
                &mut shared
            }
        };
        let mut sent = Instant::now();
        let mut answer = self.scripts.run(connection, call).await;
        if let Err(error) = &answer
            && let Some(again) = self.call_by_new_time(call, sent, error)
        {
            sent = Instant::now();
            answer = self.scripts.run(connection, &again).await;
        }
        under_way.into_iter().for_each(PendingCall::end);
        match answer {
            Ok(value) => {
                let time = if call.verb().answers_time() { leading_time(&value) } else { None };
                time.into_iter().for_each(|shown| self.observe_clock(sent, shown));
                Ok(value)
            }
            Err(error) => {
                if !is_dedicated {
                    self.connections.failed(lane, &error);
                }
                Err(settled_error(call, &error).await)
            }
        }
    }

    /// Returns the call with a new time, if this error rejected it as late by the clock of Redis and its window is open.
    fn call_by_new_time(
        &self,
        call: &ScriptCall,
        sent: Instant,
        error: &RedisError,
    ) -> Option<ScriptCall> {
        self.observe_clock(sent, error_mapping::refused_late_at(error)?);
        let last = call.window_end().filter(|&last| last > Instant::now())?;
        Some(call.with_execution_end(self.redis_clock.at(last)?))
    }

    /// Updates the estimate of Redis's clock from the reply of a call.
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

    /// Returns a connection of `lane`. A new one is checked first: it must lead to this shard, and to a usable Redis.
    /// An address may come to lead to another Redis, and a restarted Redis may have changed.
    pub(super) async fn connection(&self, lane: ConnectionLane) -> Result<RedisConnection> {
        let connected = self.connect(lane).await;
        connected.map_err(|error| Error::Unavailable(error.to_string()))
    }

    /// Returns a dedicated connection, which leads to this shard.
    pub(super) async fn dedicated_connection(&self) -> Result<deadpool_redis::Connection> {
        // Checked each time: the meaning of a wait for durability depends on the process that answers.
        let examine =
            async |connection: &mut RedisConnection| self.check_connection(connection).await;
        let own = self.connections.connect(None, examine).await;
        own.map_err(|error| Error::Unavailable(error.to_string()))
    }

    /// Writes by `connection`, and checks the name of the shard: a wait for this write includes all earlier writes,
    /// of any connection.
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
            // Older connections have the same user: their scripts would fail half-way.
            let lacks_rights = matches!(error, RedisOpenError::MissingPermission(_));
            if lacks_rights && self.connections.endpoint().is_some() {
                self.connections.disconnect();
            }
        }
        connected
    }
}

// === impl RedisShard: identity ===

impl RedisShard {
    /// Checks the shard's name, and makes jobs due that would wait for a clock that went back.
    pub(super) async fn identify(&self) -> std::result::Result<(), RedisOpenError> {
        let mut connection = self.connect(ConnectionLane::Write).await?;
        self.check_name(&mut connection, false).await?;
        if self.clock_went_back.swap(false, Ordering::Relaxed) {
            match self.make_undelayed_due().await {
                Ok(jobs) => {
                    tracing::warn!(shard = %self.name, jobs, "the clock went back; undelayed jobs are due now");
                }
                Err(error) => {
                    self.clock_went_back.store(true, Ordering::Relaxed);
                    tracing::error!(
                        shard = %self.name, %error,
                        "the clock went back; undelayed jobs could not be made due yet, this is retried"
                    );
                }
            }
        }
        Ok(())
    }

    /// Checks that a new connection leads to this shard, and to a usable Redis.
    async fn check_connection(
        &self,
        connection: &mut RedisConnection,
    ) -> std::result::Result<(), RedisOpenError> {
        let answer = redis::cmd("INFO").query_async::<String>(connection).await;
        let info = answer.map_err(|error| error_mapping::info_error(&error))?;
        match check::check(&info) {
            // Sentinel names a new primary a moment before that Redis is promoted.
            Err(RedisOpenError::Replica) if self.connections.route().sentinels() > 0 => {
                let text = "the primary that sentinel names is still a replica: failover under way";
                return Err(RedisOpenError::Unreachable(text.to_owned()));
            }
            checked => self.scripts.set_major_version(checked?),
        }
        // After the check for a sentinel, which as a rule requires no password.
        self.check_login(connection).await?;
        match check::evicts(&info) {
            // A shard that was safe once has jobs that can still be finished.
            Some(policy) if !self.status.is_known() => {
                return Err(RedisOpenError::EvictionPolicy(policy));
            }
            policy => self.status.set_eviction_policy(policy),
        }
        self.check_name(connection, true).await?;
        self.status.connected(&info);
        Ok(())
    }

    /// Checks that a password of the url is needed. A Redis that accepts any client is not the one that the url was
    /// written for. A Redis that passed once, and restarted without its password, is used all the same.
    async fn check_login(
        &self,
        connection: &mut RedisConnection,
    ) -> std::result::Result<(), RedisOpenError> {
        let login = &self.connections.route().address.login;
        let is_asked = login.username() == Some(DEFAULT_USER) && !self.status.is_known();
        let Some(password) = login.password().filter(|_| is_asked) else { return Ok(()) };
        // Without the user name, which makes Redis report the needless password.
        match redis::cmd("AUTH").arg(password).query_async::<()>(connection).await {
            Err(error) if error.to_string().contains("without any password") => {
                Err(RedisOpenError::NeedlessPassword)
            }
            _ => Ok(()),
        }
    }

    /// Writes the shard's name and the key of its receipts at first contact, and compares and reads them later; detects a
    /// clock that is behind the last stored time.
    async fn check_name(
        &self,
        connection: &mut RedisConnection,
        is_new: bool,
    ) -> std::result::Result<(), RedisOpenError> {
        let mut call = self.call(Verb::Open);
        call.arg(self.name.as_str()).arg(FORMAT).arg(FORMAT_MIN).arg(self.receipt_key.proposal());
        // Once for each connection.
        for command in commands().chain([SUBSCRIBE]).filter(|_| is_new) {
            call.arg(command);
        }
        let sent = Instant::now();
        let answer = self.scripts.run(connection, &call).await;
        let mut reply =
            ScriptReply::new(answer.map_err(|error| error_mapping::call_error(&error, true))?)?;
        let (found, format) = (reply.text()?, reply.number()?);
        let (before, now, refused) = (reply.time()?, reply.time()?, reply.text()?);
        let receipt_key = reply.text()?;
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
        self.receipt_key.stored(&receipt_key)?;
        if now < before {
            self.clock_went_back.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes every job that was enqueued without a delay due now, after the clock went back.
    async fn make_undelayed_due(&self) -> Result<u64> {
        let (mut changed, mut due) = (0, String::new());
        for topic in self.all_topics().await? {
            // The orders of the topic, then that of the jobs of all groups.
            let priorities = (0..=limit::PRIORITY_MAX).map(|priority| priority.to_string());
            for priority in priorities.chain([String::new()]) {
                let mut after = [String::new(), String::new()];
                loop {
                    let mut call = self.call(Verb::MakeUndelayedDue);
                    call.arg(topic.as_str())
                        .arg(&priority)
                        .arg(&after[0])
                        .arg(&after[1])
                        .arg(limit::CALL_JOBS_MAX)
                        .arg(&due);
                    let mut reply = self.run_list(ConnectionLane::Write, &call).await?;
                    let seen = reply.count()?;
                    changed += reply.count()?;
                    due = reply.number()?.to_string();
                    after = [reply.text()?, reply.text()?];
                    if seen == 0 {
                        break;
                    }
                }
            }
        }
        Ok(changed)
    }
}

// === impl RedisShard: topics ===

impl RedisShard {
    /// Returns this number of topics from a place on, read in parts, with their numbers of records.
    pub(super) async fn topics_from(
        &self,
        mut place: String,
        limit: usize,
    ) -> Result<Vec<(TopicInfo, u64)>> {
        let mut topics = Vec::new();
        loop {
            let size = (limit - topics.len()).min(limit::SCAN_PART_MAX);
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

    /// Returns all topics, with their numbers of records.
    pub(super) async fn topics_with_records(&self) -> Result<Vec<(TopicInfo, u64)>> {
        self.topics_from("-".to_owned(), usize::MAX).await
    }

    /// Names of all topics.
    pub(super) async fn all_topics(&self) -> Result<Vec<TopicName>> {
        Ok(self.topics_with_records().await?.into_iter().map(|(topic, _)| topic.name).collect())
    }
}

/// Returns the error of a call, once its outcome cannot change any more: until the window of a write ends, a sent
/// call may still be executed.
async fn settled_error(call: &ScriptCall, error: &RedisError) -> Error {
    let error = error_mapping::call_error(error, call.verb().only_reads());
    if let (true, Some(last)) = (error.outcome_unknown(), call.window_end()) {
        tokio::time::sleep_until(last).await;
    }
    error
}

/// Returns the time of a reply: its first element, or the whole reply.
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

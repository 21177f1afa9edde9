//! Reads facts and totals of the shard.

use deadpool_redis::redis;

use crate::domain::ring::ShardState;
use crate::domain::{Time, limit};
use crate::store::{RecordCounts, Result, StoreInfo, StoreUsage};

use super::heartbeat::parse_state;
use super::script::Verb;
use super::{ConnectionLane, RedisStore, check};

/// Maximum number of alarms that are searched for the last kept job, from the latest one back.
const ALARMS_MAX: u64 = 4_096;

impl RedisStore {
    /// Implements [`Store::info`](crate::store::Store::info).
    pub(super) async fn info(&self) -> Result<StoreInfo> {
        let (state, jobs, mut content) = self.content().await?;
        if content.dead + content.finished > 0 {
            content.latest_forget = self.latest_forget().await?;
        }
        let StoreUsage { bytes, .. } = self.usage().await?;
        Ok(StoreInfo { kind: "redis", state, jobs, counts: content, bytes })
    }

    /// Counts the records of all topics, in parts. The state is returned only if it was the same in all parts: counts
    /// of a draining shard were then made after the drain had begun.
    async fn content(&self) -> Result<(Option<ShardState>, u64, RecordCounts)> {
        let (mut jobs, mut content, mut begin) = (0, RecordCounts::default(), None);
        let mut place = "-".to_owned();
        loop {
            let mut call = self.call(Verb::Info);
            call.arg(&place).arg(limit::SCAN_PART_MAX);
            let mut reply = self.run(ConnectionLane::Read, &call).await?;
            let state = parse_state(&reply.text()?);
            let (last, more) = (reply.text()?, reply.number()? == 1);
            let records = reply.count()?;
            let part = RecordCounts {
                scheduled: reply.count()?,
                ready: reply.count()?,
                backoff: reply.count()?,
                dead: reply.count()?,
                finished: reply.count()?,
                latest_due: reply.maybe_time()?,
                ..RecordCounts::default()
            };
            jobs += records;
            // Records that neither wait nor have ended are leased.
            add_counts(
                &mut content,
                RecordCounts { running: records.saturating_sub(part.total()), ..part },
            );
            if !more {
                let stayed = *begin.get_or_insert(state) == state;
                return Ok((state.filter(|_| stayed), jobs, content));
            }
            begin.get_or_insert(state);
            place = format!("({last}");
        }
    }

    /// Returns the time at which the last dead or finished job is deleted; after a long search the time that the
    /// search has reached, which is later.
    async fn latest_forget(&self) -> Result<Option<Time>> {
        let mut passed = 0;
        loop {
            let mut call = self.call(Verb::LastKeptUntil);
            call.arg(passed).arg(limit::SCAN_PART_MAX);
            let mut reply = self.run(ConnectionLane::Read, &call).await?;
            let found = reply.maybe_time()?;
            let (looked, last) = (reply.length()?, reply.maybe_time()?);
            passed += looked as u64;
            if found.is_some() || looked < limit::SCAN_PART_MAX {
                return Ok(found);
            }
            if passed >= ALARMS_MAX {
                return Ok(last);
            }
        }
    }

    /// Implements [`Store::usage`](crate::store::Store::usage).
    pub(super) async fn usage(&self) -> Result<StoreUsage> {
        let _permit = self.shard.permit().await?;
        let mut info = redis::cmd("INFO");
        info.arg("memory");
        let text: String = self.shard.command(ConnectionLane::Read, &info).await?;
        Ok(usage(&text))
    }
}

/// Reads the section `memory` of INFO. A `maxmemory` of 0 is no limit.
fn usage(info: &str) -> StoreUsage {
    let number = |name| check::field(info, name).and_then(|bytes| bytes.parse().ok());
    StoreUsage {
        bytes: number("used_memory").unwrap_or(0),
        max_bytes: number("maxmemory").filter(|&max| max > 0),
    }
}

fn add_counts(sum: &mut RecordCounts, part: RecordCounts) {
    *sum = RecordCounts {
        scheduled: sum.scheduled + part.scheduled,
        ready: sum.ready + part.ready,
        running: sum.running + part.running,
        backoff: sum.backoff + part.backoff,
        dead: sum.dead + part.dead,
        finished: sum.finished + part.finished,
        latest_due: sum.latest_due.max(part.latest_due),
        latest_forget: None,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_maxmemory_is_no_limit() {
        let usage = |max| usage(&format!("# Memory\r\nused_memory:1024\r\nmaxmemory:{max}\r\n"));
        assert_eq!(usage(0), StoreUsage { bytes: 1_024, max_bytes: None });
        assert_eq!(usage(4_096), StoreUsage { bytes: 1_024, max_bytes: Some(4_096) });
    }
}

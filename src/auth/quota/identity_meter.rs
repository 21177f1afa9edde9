//! Meter of one identity: its rates and streams on this server, and its usage.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::token_bucket::TokenBucket;
use super::{IdentityQuota, QuotaExceeded, QuotaKind, QuotaRetry, Rate};
use crate::metrics::{IdentityMetrics, Metrics};

/// Value of a number of streams without limit.
const UNLIMITED: u32 = u32::MAX;

/// Meter of one identity.
#[derive(Debug)]
pub struct IdentityMeter {
    name: String,
    calls: Limit,
    jobs: Limit,
    bytes: Limit,
    /// Maximum number of streams of all servers together.
    streams_max: AtomicU32,
    streams: AtomicU32,
    servers: Arc<AtomicU32>,
    metrics: IdentityMetrics,
}

/// Meters of all identities in force.
#[derive(Debug)]
pub(in super::super) struct IdentityMeters {
    meters: Mutex<HashMap<String, Arc<IdentityMeter>>>,
    /// Number of live servers, this one included.
    servers: Arc<AtomicU32>,
    metrics: Metrics,
}

/// Place of a stream among those of its identity. Dropping it makes room.
#[derive(Debug)]
pub struct StreamSlot(Arc<IdentityMeter>);

/// Rate that may be unlimited.
#[derive(Debug, Default)]
struct Limit {
    /// True while there is a bucket: calls without one take no lock.
    is_on: AtomicBool,
    bucket: Mutex<Option<TokenBucket>>,
}

// === impl IdentityMeter ===

impl IdentityMeter {
    fn new(name: &str, servers: Arc<AtomicU32>, metrics: IdentityMetrics) -> IdentityMeter {
        IdentityMeter {
            name: name.to_owned(),
            calls: Limit::default(),
            jobs: Limit::default(),
            bytes: Limit::default(),
            streams_max: AtomicU32::new(UNLIMITED),
            streams: AtomicU32::new(0),
            servers,
            metrics,
        }
    }

    /// Puts these figures in force. Rates that stay as they are keep what was used of them.
    fn set_quota(&self, quota: IdentityQuota, now: Instant) {
        self.calls.set(quota.calls, now);
        self.jobs.set(quota.jobs, now);
        self.bytes.set(quota.bytes, now);
        self.streams_max.store(quota.streams.unwrap_or(UNLIMITED), Ordering::Relaxed);
    }

    /// Counts a call, and refuses it beyond the rate, unless it `settles`: refusing that would cost a lease.
    ///
    /// # Errors
    /// [`QuotaExceeded`]
    pub fn admit_call(&self, settles: bool, now: Instant) -> Result<(), QuotaExceeded> {
        if self.calls.is_on() {
            let servers = self.servers();
            self.calls.with(|bucket| {
                if settles {
                    bucket.take_in_any_case(1, now, servers);
                    return Ok(());
                }
                let checked = bucket.check(1, now, servers);
                checked
                    .map_err(|delay| self.exceeded(QuotaKind::Calls, QuotaRetry::After(delay)))?;
                bucket.take(1);
                Ok(())
            })?;
        }
        self.metrics.call();
        Ok(())
    }

    /// Takes new jobs and their bytes from both rates, or from none.
    ///
    /// # Errors
    /// [`QuotaExceeded`]
    pub fn admit_jobs(&self, jobs: u64, bytes: u64, now: Instant) -> Result<(), QuotaExceeded> {
        if jobs == 0 || !(self.jobs.is_on() || self.bytes.is_on()) {
            return Ok(());
        }
        let servers = self.servers();
        let (mut job_bucket, mut byte_bucket) = (self.jobs.lock(), self.bytes.lock());
        let checks = [
            (&mut *job_bucket, jobs, QuotaKind::Jobs),
            (&mut *byte_bucket, bytes, QuotaKind::Bytes),
        ];
        let delays = checks.into_iter().filter_map(|(bucket, count, kind)| {
            let delay = bucket.as_mut()?.check(count, now, servers).err()?;
            Some((delay, kind))
        });
        if let Some((delay, kind)) = delays.max_by_key(|(delay, _)| *delay) {
            return Err(self.exceeded(kind, QuotaRetry::After(delay)));
        }
        job_bucket.iter_mut().for_each(|bucket| bucket.take(jobs));
        byte_bucket.iter_mut().for_each(|bucket| bucket.take(bytes));
        Ok(())
    }

    /// Counts receipts that no server has made.
    pub fn forged_receipts(&self, receipts: u64) {
        self.metrics.forged_receipts(receipts);
    }

    /// Takes jobs that are never refused, follow-ups of an Ack, from the rates.
    pub fn take_jobs(&self, jobs: u64, bytes: u64, now: Instant) {
        let servers = self.servers();
        for (limit, count) in [(&self.jobs, jobs), (&self.bytes, bytes)] {
            if limit.is_on() {
                let _: Option<()> =
                    limit.with_some(|bucket| bucket.take_in_any_case(count, now, servers));
            }
        }
    }

    /// Counts jobs that were accepted, for invoices.
    pub fn jobs_accepted(&self, jobs: u64, bytes: u64) {
        self.metrics.jobs(jobs, bytes);
    }

    /// Takes the place of a stream or of a waiting Pull, among this server's share of them.
    ///
    /// # Errors
    /// [`QuotaExceeded`]
    pub fn open_stream(self: &Arc<Self>) -> Result<StreamSlot, QuotaExceeded> {
        let max = match self.streams_max.load(Ordering::Relaxed) {
            UNLIMITED => UNLIMITED,
            max => max.div_ceil(self.servers()),
        };
        let more = |open: u32| (open < max).then_some(open + 1);
        let opened = self.streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        match opened {
            Ok(_) => Ok(StreamSlot(Arc::clone(self))),
            Err(_) => Err(self.exceeded(QuotaKind::Streams, QuotaRetry::Unknown)),
        }
    }

    /// Counts a refusal by a quota of this identity or of a namespace.
    pub fn count_refusal(&self, kind: QuotaKind) {
        self.metrics.refused(kind.name());
    }

    fn exceeded(&self, kind: QuotaKind, retry: QuotaRetry) -> QuotaExceeded {
        self.count_refusal(kind);
        QuotaExceeded { kind, subject: format!("identities/{}", self.name), retry }
    }

    fn servers(&self) -> u32 {
        self.servers.load(Ordering::Relaxed).max(1)
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Limit ===

impl Limit {
    fn set(&self, rate: Option<Rate>, now: Instant) {
        let mut bucket = self.lock();
        if bucket.as_ref().map(TokenBucket::rate) != rate {
            *bucket = rate.map(|rate| TokenBucket::new(rate, now));
            self.is_on.store(rate.is_some(), Ordering::Relaxed);
        }
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Calls `change` with the bucket; without one everything is allowed.
    fn with<E>(&self, change: impl FnOnce(&mut TokenBucket) -> Result<(), E>) -> Result<(), E> {
        self.with_some(change).unwrap_or(Ok(()))
    }

    fn with_some<T>(&self, change: impl FnOnce(&mut TokenBucket) -> T) -> Option<T> {
        self.lock().as_mut().map(change)
    }

    fn lock(&self) -> MutexGuard<'_, Option<TokenBucket>> {
        self.bucket.lock()
    }
}

// === impl IdentityMeters ===

impl IdentityMeters {
    /// Creates the meters of no identity, on the only server.
    pub(in super::super) fn new(metrics: &Metrics) -> IdentityMeters {
        let (meters, servers) = (Mutex::default(), Arc::new(AtomicU32::new(1)));
        IdentityMeters { meters, servers, metrics: metrics.clone() }
    }

    /// Puts the quotas of these identities in force, and removes the series of all others.
    pub(in super::super) fn replace<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        quotas: &HashMap<String, IdentityQuota>,
        now: Instant,
    ) {
        let mut meters = self.lock();
        let mut former = std::mem::take(&mut *meters);
        let kept: Vec<_> = names.into_iter().map(|name| (name, former.remove(name))).collect();
        former.keys().for_each(|name| self.metrics.forget_identity(name));
        for (name, meter) in kept {
            let meter = meter.unwrap_or_else(|| {
                let (servers, metrics) = (Arc::clone(&self.servers), self.metrics.identity(name));
                Arc::new(IdentityMeter::new(name, servers, metrics))
            });
            meter.set_quota(quotas.get(name).copied().unwrap_or_default(), now);
            meters.insert(name.to_owned(), meter);
        }
    }

    /// Returns the meter of an identity. One that was removed a moment ago counts with the others.
    pub(in super::super) fn of(&self, name: &str) -> Arc<IdentityMeter> {
        self.lock().get(name).cloned().unwrap_or_else(|| {
            let metrics = self.metrics.other_identities();
            Arc::new(IdentityMeter::new(name, Arc::clone(&self.servers), metrics))
        })
    }

    /// Sets the number of live servers, this one included: each has the same share of all rates.
    pub(in super::super) fn set_servers(&self, servers: u32) {
        self.servers.store(servers.max(1), Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<IdentityMeter>>> {
        self.meters.lock()
    }
}

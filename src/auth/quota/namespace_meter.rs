//! Waiting jobs of the namespaces with a quota: those that were read last, and those that this server has accepted
//! since.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::super::identity_file::SEPARATORS;
use super::{NamespaceQuota, QuotaExceeded, QuotaKind, QuotaRetry};
use crate::domain::TopicName;
use crate::metrics::Metrics;

/// Interval in which the waiting jobs are read; a refused call may succeed after the next read.
pub const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Namespaces with a quota in force. Cloning shares them.
#[derive(Clone, Debug)]
pub struct NamespaceMeters(Arc<NamespaceMetersInner>);

#[derive(Debug)]
struct NamespaceMetersInner {
    /// True while there is any: calls without one take no lock.
    is_on: AtomicBool,
    table: watch::Sender<Arc<NamespaceTable>>,
    metrics: Metrics,
}

/// Namespaces with a quota at one moment, by name.
#[derive(Debug, Default)]
pub struct NamespaceTable(HashMap<String, Arc<NamespaceMeter>>);

/// Waiting jobs of one namespace.
#[derive(Debug)]
struct NamespaceMeter {
    name: String,
    waiting_max: u64,
    count: Mutex<WaitingCount>,
}

/// Numbers of waiting jobs.
#[derive(Clone, Copy, Debug, Default)]
struct WaitingCount {
    /// Number that was read last.
    read: u64,
    /// Jobs that this server has written since that read began; the read may have missed them.
    written: u64,
    /// Jobs that it has written since the read under way began.
    written_during_read: u64,
    /// Jobs that it is writing.
    in_flight: u64,
}

/// Room for jobs that are being written. Dropping it makes the room free again.
#[derive(Debug, Default)]
pub struct JobReservation(Vec<(Arc<NamespaceMeter>, u64)>);

// === impl NamespaceMeters ===

impl NamespaceMeters {
    /// Creates the meters of no namespace.
    pub(in super::super) fn new(metrics: &Metrics) -> NamespaceMeters {
        let (table, metrics) = (watch::Sender::default(), metrics.clone());
        NamespaceMeters(Arc::new(NamespaceMetersInner {
            is_on: AtomicBool::new(false),
            table,
            metrics,
        }))
    }

    /// Puts these quotas in force. Numbers of namespaces that stay are kept.
    pub(in super::super) fn replace(&self, quotas: &BTreeMap<String, NamespaceQuota>) {
        let former = Arc::clone(&self.0.table.borrow());
        let mut table = HashMap::with_capacity(quotas.len());
        for (name, quota) in quotas {
            let Some(waiting_max) = quota.waiting_jobs else { continue };
            let count = former.0.get(name).map(|meter| *meter.lock()).unwrap_or_default();
            // Jobs that are being written return to the former meter.
            let count = WaitingCount {
                written: count.written + count.in_flight,
                written_during_read: count.written_during_read + count.in_flight,
                in_flight: 0,
                ..count
            };
            let same = former.0.get(name).filter(|meter| meter.waiting_max == waiting_max);
            let meter = same.cloned().unwrap_or_else(|| {
                let (name, count) = (name.clone(), Mutex::new(count));
                Arc::new(NamespaceMeter { name, waiting_max, count })
            });
            table.insert(name.clone(), meter);
        }
        self.0.is_on.store(!table.is_empty(), Ordering::Relaxed);
        self.0.table.send_modify(|now| {
            let removed = now.0.keys().filter(|name| !table.contains_key(*name));
            removed.for_each(|name| self.0.metrics.forget_namespace(name));
            *now = Arc::new(NamespaceTable(table));
        });
    }

    /// Reserves room for a job of each of these topics, or for none of them.
    ///
    /// # Errors
    /// [`QuotaExceeded`] of the first namespace without room.
    pub fn reserve<'a>(
        &self,
        topics: impl Iterator<Item = &'a TopicName>,
    ) -> Result<JobReservation, QuotaExceeded> {
        let mut reservation = JobReservation::default();
        for (meter, jobs) in self.count_by_namespace(topics) {
            meter.reserve(jobs)?;
            reservation.0.push((meter, jobs));
        }
        Ok(reservation)
    }

    /// Counts a written job of each of these topics, whether there is room or not.
    pub fn count_written<'a>(&self, topics: impl Iterator<Item = &'a TopicName>) {
        for (meter, jobs) in self.count_by_namespace(topics) {
            meter.lock().add_written(jobs);
        }
    }

    /// Waits until there is a namespace with a quota, and returns all.
    pub async fn wait_for_any(&self) -> Arc<NamespaceTable> {
        let mut table = self.0.table.subscribe();
        let found =
            table.wait_for(|table| !table.0.is_empty()).await.map(|table| Arc::clone(&table));
        match found {
            Ok(table) => table,
            // The sender lives as long as `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// Sets the numbers that a read since [`NamespaceTable::begin_read`] has found, by name; namespaces that are not
    /// among them have no waiting jobs.
    pub fn end_read(&self, table: &NamespaceTable, found: &HashMap<String, u64>) {
        // Borrowed to the end: the series of a namespace that is removed meanwhile would stay.
        let now = self.0.table.borrow();
        for (name, meter) in &table.0 {
            let jobs = found.get(name).copied().unwrap_or(0);
            meter.lock().end_read(jobs);
            if now.0.contains_key(name) {
                self.0.metrics.set_namespace_waiting(name, jobs);
            }
        }
    }

    fn count_by_namespace<'a>(
        &self,
        topics: impl Iterator<Item = &'a TopicName>,
    ) -> Vec<(Arc<NamespaceMeter>, u64)> {
        if !self.0.is_on.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let table = Arc::clone(&self.0.table.borrow());
        let mut counts: HashMap<&str, u64> = HashMap::new();
        let topics: Vec<_> = topics.collect();
        for run in topics.chunk_by(|a, b| a == b) {
            for name in run.first().into_iter().flat_map(|topic| table.names_of(topic)) {
                *counts.entry(name).or_default() += run.len() as u64;
            }
        }
        let meter = |(name, jobs)| Some((Arc::clone(table.0.get(name)?), jobs));
        counts.into_iter().filter_map(meter).collect()
    }
}

// === impl NamespaceTable ===

impl NamespaceTable {
    /// Returns the namespaces that include all others: each topic with a quota begins with one of them.
    #[must_use]
    pub fn outermost(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.0.keys().map(String::as_str).collect();
        names.sort_unstable();
        let mut outermost: Vec<&str> = Vec::new();
        for name in names {
            if outermost.last().is_none_or(|outer| !name.starts_with(outer)) {
                outermost.push(name);
            }
        }
        outermost
    }

    /// Returns the namespaces with a quota that a topic is in.
    pub fn names_of<'t>(&'t self, topic: &TopicName) -> impl Iterator<Item = &'t str> {
        let topic = topic.as_str();
        let ends = topic.char_indices().filter(|(_, c)| SEPARATORS.contains(c));
        // All separators are one byte long.
        let prefixes: Vec<_> = ends.map(|(index, _)| &topic[..=index]).collect();
        let found = prefixes.into_iter().filter_map(|prefix| Some(self.0.get_key_value(prefix)?.0));
        found.map(String::as_str).collect::<Vec<_>>().into_iter()
    }

    /// Begins a read of the waiting jobs: what is written from now on may be missing in it.
    pub fn begin_read(&self) {
        self.0.values().for_each(|meter| meter.lock().written_during_read = 0);
    }
}

// === impl NamespaceMeter ===

impl NamespaceMeter {
    fn reserve(&self, jobs: u64) -> Result<(), QuotaExceeded> {
        let mut count = self.lock();
        if count.used() + jobs <= self.waiting_max {
            count.in_flight += jobs;
            return Ok(());
        }
        let retry = if jobs > self.waiting_max {
            QuotaRetry::Never
        } else {
            QuotaRetry::After(READ_INTERVAL)
        };
        let subject = format!("namespaces/{}", self.name);
        Err(QuotaExceeded { kind: QuotaKind::WaitingJobs, subject, retry })
    }

    fn lock(&self) -> MutexGuard<'_, WaitingCount> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl WaitingCount ===

impl WaitingCount {
    fn used(&self) -> u64 {
        self.read + self.written + self.in_flight
    }

    fn add_written(&mut self, jobs: u64) {
        self.written += jobs;
        self.written_during_read += jobs;
    }

    fn end_read(&mut self, found: u64) {
        self.read = found;
        self.written = self.written_during_read;
    }
}

// === impl JobReservation ===

impl JobReservation {
    /// Confirms that the jobs were written, or may have been: the next read finds how many were.
    pub fn written(mut self) {
        for (meter, jobs) in std::mem::take(&mut self.0) {
            let mut count = meter.lock();
            count.in_flight = count.in_flight.saturating_sub(jobs);
            count.add_written(jobs);
        }
    }
}

impl Drop for JobReservation {
    fn drop(&mut self) {
        for (meter, jobs) in &self.0 {
            let mut count = meter.lock();
            count.in_flight = count.in_flight.saturating_sub(*jobs);
        }
    }
}

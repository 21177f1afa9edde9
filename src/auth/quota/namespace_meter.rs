//! Use of the namespaces with a quota: what was read last, and what this server has accepted since.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::identity_file::SEPARATORS;
use super::read_progress::ReadProgress;
use super::{NamespaceQuota, QuotaExceeded, QuotaKind, QuotaRetry};
use crate::domain::{TopicName, limit};
use crate::metrics::Metrics;

/// Interval in which the use is read; a refused call may succeed after the next read.
pub const READ_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time that a job waits for reads.
const READ_WAIT_MAX: Duration = Duration::from_millis(500);

/// Figure of a namespace that a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceFigure {
    /// [`NamespaceQuota::waiting_jobs`]
    WaitingJobs,
    /// [`NamespaceQuota::stored_bytes`]
    StoredBytes,
}

/// A value for each [`NamespaceFigure`], in their order.
type PerFigure<T> = [T; 2];

/// Namespaces with a quota in force. Cloning shares them.
#[derive(Clone, Debug)]
pub struct NamespaceMeters(Arc<NamespaceMetersInner>);

#[derive(Debug)]
struct NamespaceMetersInner {
    /// True while there is any: calls without one take no lock.
    is_on: AtomicBool,
    table: watch::Sender<Arc<NamespaceTable>>,
    reads: PerFigure<ReadProgress>,
    metrics: Metrics,
}

/// Namespaces with a quota at one moment, by name.
#[derive(Debug, Default)]
pub struct NamespaceTable(HashMap<String, Arc<NamespaceMeter>>);

/// Use of one namespace.
#[derive(Debug)]
struct NamespaceMeter {
    name: String,
    /// Quotas; `None`: without limit, and not counted.
    max: PerFigure<Option<u64>>,
    /// Topics that may have settings by calls; counted where they are known.
    topic_settings: Option<u64>,
    used: Mutex<PerFigure<Used>>,
}

/// Use of one figure.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// Number that was read last.
    read: u64,
    /// Number that this server has written since that read began; the read may have missed it.
    written: u64,
    /// Number that it has written since the read under way began.
    written_during_read: u64,
    /// Number that it is writing.
    in_flight: u64,
}

/// Namespace without room for jobs.
#[derive(Debug)]
pub(super) struct NoRoom {
    pub(super) exceeded: QuotaExceeded,
    /// Figure of which another read may find room.
    pub(super) outdated: Option<NamespaceFigure>,
}

/// Room for jobs that are being written. Dropping it makes the room free again.
#[derive(Debug, Default)]
pub struct JobReservation(Vec<(Arc<NamespaceMeter>, PerFigure<u64>)>);

// === impl NamespaceFigure ===

impl NamespaceFigure {
    /// All figures.
    pub const ALL: PerFigure<NamespaceFigure> =
        [NamespaceFigure::WaitingJobs, NamespaceFigure::StoredBytes];

    fn kind(self) -> QuotaKind {
        match self {
            NamespaceFigure::WaitingJobs => QuotaKind::WaitingJobs,
            NamespaceFigure::StoredBytes => QuotaKind::StoredBytes,
        }
    }

    fn max(self, quota: &NamespaceQuota) -> Option<u64> {
        match self {
            NamespaceFigure::WaitingJobs => quota.waiting_jobs,
            NamespaceFigure::StoredBytes => quota.stored_bytes,
        }
    }

    /// Returns what a job adds to each figure whose client has filled this number of bytes.
    fn amounts(bytes: u64) -> PerFigure<u64> {
        [1, bytes.saturating_add(limit::STORED_JOB_BYTES)]
    }

    fn set_metric(self, metrics: &Metrics, namespace: &str, number: u64) {
        match self {
            NamespaceFigure::WaitingJobs => metrics.set_namespace_waiting(namespace, number),
            NamespaceFigure::StoredBytes => metrics.set_namespace_stored(namespace, number),
        }
    }

    fn forget_metric(self, metrics: &Metrics, namespace: &str) {
        match self {
            NamespaceFigure::WaitingJobs => metrics.forget_namespace_waiting(namespace),
            NamespaceFigure::StoredBytes => metrics.forget_namespace_stored(namespace),
        }
    }
}

// === impl NamespaceMeters ===

impl NamespaceMeters {
    /// Creates the meters of no namespace.
    pub(in super::super) fn new(metrics: &Metrics) -> NamespaceMeters {
        NamespaceMeters(Arc::new(NamespaceMetersInner {
            is_on: AtomicBool::new(false),
            table: watch::Sender::default(),
            reads: Default::default(),
            metrics: metrics.clone(),
        }))
    }

    /// Puts these quotas in force. Numbers of figures that stay limited are kept.
    pub(in super::super) fn replace(&self, quotas: &BTreeMap<String, NamespaceQuota>) {
        let former = Arc::clone(&self.0.table.borrow());
        let mut table = HashMap::with_capacity(quotas.len());
        for (name, quota) in quotas {
            let max = NamespaceFigure::ALL.map(|figure| figure.max(quota));
            let topic_settings = quota.topic_settings;
            if max.iter().all(Option::is_none) && topic_settings.is_none() {
                continue;
            }
            let known = former.0.get(name);
            let is_same = |meter: &&Arc<NamespaceMeter>| {
                (meter.max, meter.topic_settings) == (max, topic_settings)
            };
            let same = known.filter(is_same).cloned();
            let meter = same.unwrap_or_else(|| {
                let used = known.map(|meter| meter.used_under_another_quota()).unwrap_or_default();
                let (name, used) = (name.clone(), Mutex::new(used));
                Arc::new(NamespaceMeter { name, max, topic_settings, used })
            });
            table.insert(name.clone(), meter);
        }
        self.0.is_on.store(!table.is_empty(), Ordering::Relaxed);
        self.0.table.send_modify(|now| {
            let table = NamespaceTable(table);
            for figure in NamespaceFigure::ALL {
                let removed = now.limited(figure).filter(|name| !table.limits(name, figure));
                removed.for_each(|name| figure.forget_metric(&self.0.metrics, name));
            }
            *now = Arc::new(table);
        });
    }

    /// Reserves room for these jobs, each given as its topic and the bytes that its client has filled, or for none of them.
    /// Where that fails because of jobs that were written since the last read, and may have been taken by workers since,
    /// another read is awaited first, for half a second at most.
    ///
    /// # Errors
    /// [`QuotaExceeded`] of the first namespace without room.
    pub async fn reserve(
        &self,
        jobs: &[(TopicName, u64)],
    ) -> Result<JobReservation, QuotaExceeded> {
        let until = Instant::now() + READ_WAIT_MAX;
        loop {
            let NoRoom { exceeded, outdated } = match self.reserve_at_once(jobs) {
                Ok(reservation) => return Ok(reservation),
                Err(no_room) => no_room,
            };
            let Some(figure) = outdated else { return Err(exceeded) };
            if !self.0.reads[figure as usize].next(until).await {
                return Err(exceeded);
            }
        }
    }

    /// Does the same as [`NamespaceMeters::reserve`] with the numbers of the last read.
    pub(super) fn reserve_at_once(
        &self,
        jobs: &[(TopicName, u64)],
    ) -> Result<JobReservation, NoRoom> {
        let mut reservation = JobReservation::default();
        for (meter, amounts) in self.count_by_namespace(jobs) {
            meter.reserve(amounts)?;
            reservation.0.push((meter, amounts));
        }
        Ok(reservation)
    }

    /// Returns the quotas of topics with settings of the namespaces that a topic is in, by their names.
    #[must_use]
    pub fn topic_settings(&self, topic: &TopicName) -> Vec<(String, u64)> {
        let table = Arc::clone(&self.0.table.borrow());
        let quota = |name: &str| Some((name.to_owned(), table.0.get(name)?.topic_settings?));
        table.names_of(topic).filter_map(quota).collect()
    }

    /// Counts these jobs as written, whether there is room or not.
    pub fn count_written(&self, jobs: &[(TopicName, u64)]) {
        for (meter, amounts) in self.count_by_namespace(jobs) {
            meter.change(amounts, Used::add_written);
        }
    }

    /// Waits until there is a namespace with a quota of this figure, and returns all namespaces.
    pub async fn wait_for_any(&self, figure: NamespaceFigure) -> Arc<NamespaceTable> {
        let mut table = self.0.table.subscribe();
        let found = table
            .wait_for(|table| table.limited(figure).next().is_some())
            .await
            .map(|table| Arc::clone(&table));
        match found {
            Ok(table) => table,
            // The sender lives as long as `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// Waits until a job needs a read of this figure.
    pub async fn read_wanted(&self, figure: NamespaceFigure) {
        self.0.reads[figure as usize].wanted().await;
    }

    /// Begins a read of a figure of these namespaces: what is written from now on may be missing in it.
    pub fn begin_read(&self, table: &NamespaceTable, figure: NamespaceFigure) {
        self.0.reads[figure as usize].begin();
        for meter in table.0.values() {
            meter.lock()[figure as usize].written_during_read = 0;
        }
    }

    /// Sets the numbers that a read since [`NamespaceMeters::begin_read`] has found, by name; the number of namespaces
    /// that are not among them is 0.
    pub fn end_read(
        &self,
        table: &NamespaceTable,
        figure: NamespaceFigure,
        found: &HashMap<String, u64>,
    ) {
        // Borrowed to the end: the series of a namespace that is removed meanwhile would stay.
        let now = self.0.table.borrow();
        for (name, meter) in table.0.iter().filter(|(name, _)| table.limits(name, figure)) {
            let number = found.get(name).copied().unwrap_or(0);
            meter.lock()[figure as usize].end_read(number);
            if now.limits(name, figure) {
                figure.set_metric(&self.0.metrics, name, number);
            }
        }
        self.0.reads[figure as usize].end();
    }

    fn count_by_namespace(
        &self,
        jobs: &[(TopicName, u64)],
    ) -> Vec<(Arc<NamespaceMeter>, PerFigure<u64>)> {
        if !self.0.is_on.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let table = Arc::clone(&self.0.table.borrow());
        let mut sums: HashMap<&str, PerFigure<u64>> = HashMap::new();
        for run in jobs.chunk_by(|a, b| a.0 == b.0) {
            let amounts = run.iter().map(|(_, bytes)| NamespaceFigure::amounts(*bytes));
            let sum = amounts.fold([0, 0], add);
            for name in run.first().into_iter().flat_map(|(topic, _)| table.names_of(topic)) {
                let all = sums.entry(name).or_default();
                *all = add(*all, sum);
            }
        }
        let meter = |(name, amounts)| Some((Arc::clone(table.0.get(name)?), amounts));
        sums.into_iter().filter_map(meter).collect()
    }
}

fn add(a: PerFigure<u64>, b: PerFigure<u64>) -> PerFigure<u64> {
    [a[0].saturating_add(b[0]), a[1].saturating_add(b[1])]
}

// === impl NamespaceTable ===

impl NamespaceTable {
    /// Returns the namespaces with a quota of this figure that include all others with one: each topic that it concerns
    /// begins with one of them.
    #[must_use]
    pub fn outermost(&self, figure: NamespaceFigure) -> Vec<&str> {
        let mut names: Vec<&str> = self.limited(figure).collect();
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

    /// Returns the names of the namespaces with a quota of this figure.
    fn limited(&self, figure: NamespaceFigure) -> impl Iterator<Item = &str> {
        let limited = self.0.iter().filter(move |(_, meter)| meter.max[figure as usize].is_some());
        limited.map(|(name, _)| name.as_str())
    }

    fn limits(&self, name: &str, figure: NamespaceFigure) -> bool {
        self.0.get(name).is_some_and(|meter| meter.max[figure as usize].is_some())
    }
}

// === impl NamespaceMeter ===

impl NamespaceMeter {
    /// Reserves all of these amounts, or none.
    fn reserve(&self, amounts: PerFigure<u64>) -> Result<(), NoRoom> {
        let limited = || {
            let figures = NamespaceFigure::ALL.into_iter().zip(amounts);
            figures
                .filter_map(|(figure, amount)| Some((figure, amount, self.max[figure as usize]?)))
        };
        if let Some((figure, ..)) = limited().find(|(_, amount, max)| amount > max) {
            return Err(NoRoom {
                exceeded: self.exceeded(figure, QuotaRetry::Never),
                outdated: None,
            });
        }
        let mut used = self.lock();
        let mut full =
            limited().filter(|(figure, amount, max)| used[*figure as usize].sum() + amount > *max);
        if let Some((figure, amount, max)) = full.next() {
            let exceeded = self.exceeded(figure, QuotaRetry::After(READ_INTERVAL));
            let outdated = used[figure as usize].may_have_room(amount, max).then_some(figure);
            return Err(NoRoom { exceeded, outdated });
        }
        for (figure, amount, _) in limited() {
            used[figure as usize].in_flight += amount;
        }
        Ok(())
    }

    fn exceeded(&self, figure: NamespaceFigure, retry: QuotaRetry) -> QuotaExceeded {
        let subject = format!("namespaces/{}", self.name);
        QuotaExceeded { kind: figure.kind(), subject, retry }
    }

    /// Changes the use of each figure with a quota by its amount.
    fn change(&self, amounts: PerFigure<u64>, change: impl Fn(&mut Used, u64)) {
        for ((used, amount), max) in self.lock().iter_mut().zip(amounts).zip(self.max) {
            if max.is_some() {
                change(used, amount);
            }
        }
    }

    /// Returns the use with which another meter of the namespace begins. What is being written returns to this one.
    fn used_under_another_quota(&self) -> PerFigure<Used> {
        self.lock().map(|used| Used {
            written: used.written + used.in_flight,
            written_during_read: used.written_during_read + used.in_flight,
            in_flight: 0,
            ..used
        })
    }

    fn lock(&self) -> MutexGuard<'_, PerFigure<Used>> {
        self.used.lock()
    }
}

// === impl Used ===

impl Used {
    fn sum(&self) -> u64 {
        self.read.saturating_add(self.written).saturating_add(self.in_flight)
    }

    /// Returns whether another read may find room: jobs that were written since the last one may have been taken.
    fn may_have_room(&self, amount: u64, max: u64) -> bool {
        self.written > 0 && self.read.saturating_add(self.in_flight).saturating_add(amount) <= max
    }

    fn add_written(&mut self, number: u64) {
        self.written += number;
        self.written_during_read += number;
    }

    fn return_reserved(&mut self, number: u64) {
        self.in_flight = self.in_flight.saturating_sub(number);
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
        for (meter, amounts) in std::mem::take(&mut self.0) {
            meter.change(amounts, |used, number| {
                used.return_reserved(number);
                used.add_written(number);
            });
        }
    }
}

impl Drop for JobReservation {
    fn drop(&mut self) {
        for (meter, amounts) in &self.0 {
            meter.change(*amounts, Used::return_reserved);
        }
    }
}

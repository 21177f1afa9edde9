//! Metrics by identity and by namespace with a quota: usage, for invoices. Both are named by the files of identities, and
//! their series are removed with them.

use std::collections::HashSet;

use parking_lot::Mutex;
use prometheus::{GaugeVec, IntCounter, IntCounterVec};

use super::definitions::{
    IDENTITY_BYTES, IDENTITY_CALLS, IDENTITY_FORGED, IDENTITY_JOBS, IDENTITY_REFUSED,
    NAMESPACE_STORED, NAMESPACE_WAITING,
};
use super::registry::Registry;
use super::{IDENTITIES_MAX, OTHER_TOPICS};

// A vector finds its series by a hash of all values in a row, so no value may be the end of another one.
const QUOTAS: &[&str] = &[
    "calls_per_second",
    "jobs_per_second",
    "bytes_per_second",
    "streams",
    "waiting_jobs",
    "stored_bytes",
    "topic_settings",
];

/// Usage of one identity. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct IdentityMetrics {
    calls: IntCounter,
    jobs: IntCounter,
    bytes: IntCounter,
    forged: IntCounter,
    refused: Vec<(&'static str, IntCounter)>,
}

/// Series of all identities and namespaces.
#[derive(Debug)]
pub(super) struct IdentitySeries {
    calls: IntCounterVec,
    jobs: IntCounterVec,
    bytes: IntCounterVec,
    forged: IntCounterVec,
    refused: IntCounterVec,
    waiting: GaugeVec,
    stored: GaugeVec,
    /// Identities with series of their own.
    known: Mutex<HashSet<Box<str>>>,
}

// === impl IdentitySeries ===

impl IdentitySeries {
    pub(super) fn new(registry: &Registry) -> IdentitySeries {
        IdentitySeries {
            calls: registry.counters(&IDENTITY_CALLS),
            jobs: registry.counters(&IDENTITY_JOBS),
            bytes: registry.counters(&IDENTITY_BYTES),
            forged: registry.counters(&IDENTITY_FORGED),
            refused: registry.counters(&IDENTITY_REFUSED),
            waiting: registry.gauges(&NAMESPACE_WAITING),
            stored: registry.gauges(&NAMESPACE_STORED),
            known: Mutex::default(),
        }
    }

    /// Returns the series of an identity: its own, or those of all others.
    pub(super) fn metrics_of(&self, identity: &str) -> IdentityMetrics {
        let mut known = self.known.lock();
        let has_own = known.contains(identity) || known.len() < IDENTITIES_MAX;
        if has_own {
            known.insert(identity.into());
        }
        self.create(if has_own { identity } else { OTHER_TOPICS })
    }

    /// Returns the series of the identities without series of their own.
    pub(super) fn other(&self) -> IdentityMetrics {
        self.create(OTHER_TOPICS)
    }

    /// Removes the series of an identity.
    pub(super) fn forget(&self, identity: &str) {
        if self.known.lock().remove(identity) {
            for vector in [&self.calls, &self.jobs, &self.bytes, &self.forged] {
                let _ = vector.remove_label_values(&[identity]);
            }
            for quota in QUOTAS {
                let _ = self.refused.remove_label_values(&[identity, quota]);
            }
        }
    }

    /// Sets the number of waiting jobs of a namespace.
    pub(super) fn set_waiting(&self, namespace: &str, jobs: u64) {
        self.waiting.with_label_values(&[namespace]).set(jobs as f64);
    }

    /// Sets the stored bytes of a namespace.
    pub(super) fn set_stored(&self, namespace: &str, bytes: u64) {
        self.stored.with_label_values(&[namespace]).set(bytes as f64);
    }

    /// Removes the number of waiting jobs of a namespace.
    pub(super) fn forget_waiting(&self, namespace: &str) {
        let _ = self.waiting.remove_label_values(&[namespace]);
    }

    /// Removes the stored bytes of a namespace.
    pub(super) fn forget_stored(&self, namespace: &str) {
        let _ = self.stored.remove_label_values(&[namespace]);
    }

    /// Creates all counters of a label together: they begin with 0, so that their first increase is seen.
    fn create(&self, label: &str) -> IdentityMetrics {
        let refused =
            |quota: &&'static str| (*quota, self.refused.with_label_values(&[label, *quota]));
        IdentityMetrics {
            calls: self.calls.with_label_values(&[label]),
            jobs: self.jobs.with_label_values(&[label]),
            bytes: self.bytes.with_label_values(&[label]),
            forged: self.forged.with_label_values(&[label]),
            refused: QUOTAS.iter().map(refused).collect(),
        }
    }
}

// === impl IdentityMetrics ===

impl IdentityMetrics {
    /// Counts a call.
    pub fn call(&self) {
        self.calls.inc();
    }

    /// Counts accepted jobs, and the bytes of their payloads and headers.
    pub fn jobs(&self, jobs: u64, bytes: u64) {
        self.jobs.inc_by(jobs);
        self.bytes.inc_by(bytes);
    }

    /// Counts receipts that no server has made.
    pub fn forged_receipts(&self, receipts: u64) {
        self.forged.inc_by(receipts);
    }

    /// Counts a call that a quota of this name has refused.
    pub fn refused(&self, quota: &'static str) {
        let counter = self.refused.iter().find(|(known, _)| *known == quota);
        debug_assert!(counter.is_some(), "{quota} is not a value of the label");
        counter.into_iter().for_each(|(_, counter)| counter.inc());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn no_quota_is_the_end_of_another() {
        for (i, quota) in QUOTAS.iter().enumerate() {
            let mut others = QUOTAS.iter().enumerate().filter(|(j, _)| *j != i);
            assert!(others.all(|(_, other)| !quota.ends_with(other)), "{quota}");
        }
    }

    #[test]
    fn series_come_and_go_with_their_identity_and_a_limited_number_has_its_own() {
        let metrics = Metrics::new();
        let count = |text: &str| metrics.render().matches(text).count();
        assert_eq!(count("ringq_identity"), 0, "nothing without identities");
        for n in 0..=IDENTITIES_MAX {
            metrics.identity(&format!("i{n}")).call();
        }
        metrics.identity("i0").call();
        let last = format!("identity=\"i{}\"", IDENTITIES_MAX - 1);
        assert_eq!(count(&last), 4 + QUOTAS.len());
        assert_eq!(count(&format!("identity=\"i{IDENTITIES_MAX}\"")), 0);
        assert_eq!(count("ringq_identity_calls_total{identity=\"_other\"} 1\n"), 1);
        assert_eq!(count("ringq_identity_calls_total{identity=\"i0\"} 2\n"), 1);
        metrics.forget_identity("i0");
        assert_eq!(count("identity=\"i0\""), 0);
        metrics.identity("new").refused("streams");
        let line = "ringq_identity_refused_total{identity=\"new\",quota=\"streams\"} 1\n";
        assert_eq!(count(line), 1);
    }

    #[test]
    fn the_gauges_of_a_namespace_go_with_their_quotas() {
        let metrics = Metrics::new();
        metrics.set_namespace_waiting("shop.", 7);
        metrics.set_namespace_stored("shop.", 8_000);
        let waiting = "ringq_namespace_waiting_jobs{namespace=\"shop.\"} 7\n";
        let stored = "ringq_namespace_stored_bytes{namespace=\"shop.\"} 8000\n";
        let shown = || [waiting, stored].map(|line| metrics.render().contains(line));
        assert_eq!(shown(), [true, true]);
        metrics.forget_namespace_waiting("shop.");
        assert_eq!(shown(), [false, true]);
        metrics.forget_namespace_stored("shop.");
        assert!(!metrics.render().contains("ringq_namespace"));
    }
}

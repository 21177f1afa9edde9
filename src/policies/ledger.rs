//! Policies that each shard has, as far as this replica has read, and those that it has to get.
//!
//! **Removal.** A policy of which nothing is left has done its work once all shards have it: it only kept older versions
//! from coming back. Then each shard removes it and raises its *horizon* in the same write. Up to that version the shard has
//! had all policies, so that what it lacks was removed. A shard that comes back with older data, or a server that slept
//! meanwhile, has a lower horizon or must read anew, and what it brings is deleted instead of taken over
//! ([`Ledger::is_gone`]).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use tokio::time::Instant;

use crate::domain::{Time, TopicPattern, TopicPolicy, limit};
use crate::store::{PoliciesPage, PolicyHorizon, PolicyRemoval, PolicyWriteResult};

use super::view::{PolicyNews, PolicyView};

/// Policies that a shard has, as far as this replica has read them.
#[derive(Default)]
pub(super) struct ShardCopy {
    pub(super) last_sequence: u64,
    horizon: PolicyHorizon,
    /// True: everything was read that the shard had at some moment.
    is_complete: bool,
    policies: HashMap<TopicPattern, Arc<TopicPolicy>>,
    /// Versions of policies that were not read, or cannot be: a newer one replaces them.
    unread: HashMap<TopicPattern, u64>,
    /// Names whose policy may be newer elsewhere.
    behind: HashSet<TopicPattern>,
}

/// Copies of all shards, in their order.
pub(super) struct Ledger {
    pub(super) copies: Vec<ShardCopy>,
    /// Policies of which nothing is left, by version.
    empty: BTreeSet<(u64, TopicPattern)>,
    /// Highest version that any shard has had.
    highest: u64,
    /// Since when all shards have had all policies up to this version.
    equal_since: Option<(Instant, u64)>,
    /// Names that are getting settings.
    pub(super) reserved: Vec<TopicPattern>,
}

// === impl ShardCopy ===

impl ShardCopy {
    /// Records what the shard has.
    pub(super) fn insert(&mut self, policy: &Arc<TopicPolicy>) {
        self.unread.remove(&policy.name);
        self.policies.insert(policy.name.clone(), Arc::clone(policy));
    }

    /// Returns the version that a write to the shard has to expect.
    pub(super) fn version(&self, name: &TopicPattern) -> u64 {
        let unread = self.unread.get(name).copied();
        unread.or_else(|| Some(self.policies.get(name)?.version)).unwrap_or(0)
    }

    /// Records the version that a refused write has found.
    fn found(&mut self, name: &TopicPattern, version: u64) {
        self.policies.remove(name);
        match version {
            0 => drop(self.unread.remove(name)),
            version => drop(self.unread.insert(name.clone(), version)),
        }
    }

    /// Returns whether the shard has to get the policy.
    fn lacks(&self, policy: &TopicPolicy) -> bool {
        let (stored, version) = (self.policies.get(&policy.name), self.version(&policy.name));
        match stored {
            Some(stored) => policy.replaces(stored),
            None if version > 0 => policy.version > version,
            None => policy.is_live() || policy.version > self.horizon.version,
        }
    }

    /// Returns whether the shard has lost data, or has removed policies that were not read before.
    fn must_be_read_anew(&self, page: &PoliciesPage) -> bool {
        let has_missed = page.horizon != self.horizon
            && !(self.is_complete && page.horizon.sequence <= self.last_sequence);
        (self.is_complete || self.last_sequence > 0)
            && (page.last_sequence < self.last_sequence
                || page.horizon.version < self.horizon.version
                || has_missed)
    }
}

// === impl Ledger ===

impl Ledger {
    pub(super) fn new(shards: usize) -> Ledger {
        Ledger {
            copies: (0..shards).map(|_| ShardCopy::default()).collect(),
            empty: BTreeSet::new(),
            highest: 0,
            equal_since: None,
            reserved: Vec::new(),
        }
    }

    /// Returns a version above all that any shard has had. The time is part of it, so that this holds also if all data
    /// was lost.
    pub(super) fn next_version(&self, now: Time) -> u64 {
        u64::try_from(now.0).unwrap_or(0).max(self.highest + 1)
    }

    /// Forgets what was read of a shard: all of it is read again.
    pub(super) fn reset(&mut self, shard: usize, view: &PolicyView) {
        let behind = view.all().map(|policy| policy.name.clone()).collect();
        self.copies[shard] = ShardCopy { behind, ..ShardCopy::default() };
        self.equal_since = None;
    }

    /// Records a page of a shard. Returns what is to be merged, or `None` if the shard is to be read anew.
    pub(super) fn take(
        &mut self,
        shard: usize,
        page: &PoliciesPage,
        policies: Vec<Result<Arc<TopicPolicy>, (TopicPattern, u64)>>,
        view: &PolicyView,
        now: Time,
    ) -> Option<Vec<Arc<TopicPolicy>>> {
        if self.copies[shard].must_be_read_anew(page) {
            self.reset(shard, view);
            return None;
        }
        self.highest = self.highest.max(page.horizon.version);
        let copy = &mut self.copies[shard];
        if copy.is_complete && copy.horizon.version < page.horizon.version {
            let removed = self.empty.iter().take_while(|(v, _)| *v <= page.horizon.version);
            for (version, name) in removed {
                if copy.policies.get(name).is_some_and(|policy| policy.version == *version) {
                    copy.policies.remove(name);
                }
            }
        }
        copy.horizon = page.horizon;
        let mut read = Vec::with_capacity(policies.len());
        for policy in policies {
            match policy {
                Ok(policy) => {
                    copy.insert(&policy);
                    copy.behind.insert(policy.name.clone());
                    read.push(policy);
                }
                Err((name, version)) => {
                    copy.policies.remove(&name);
                    copy.unread.insert(name, version);
                }
            }
        }
        let last = page.policies.last().map_or(page.last_sequence, |last| last.sequence);
        // Names that another version of ringq wrote are not in the page.
        let is_last = last >= page.last_sequence || page.policies.is_empty();
        copy.last_sequence = if is_last { page.last_sequence } else { last };
        let was_complete = std::mem::replace(&mut copy.is_complete, true);
        copy.is_complete = was_complete || is_last;
        if copy.is_complete && !was_complete {
            // What the others had may have been removed here.
            read.extend(view.all().cloned());
        }
        Some(read.into_iter().map(|policy| self.or_deletion(policy, now)).collect())
    }

    /// Returns whether the shard is read up to its last change.
    pub(super) fn is_read(&self, shard: usize, page: &PoliciesPage) -> bool {
        self.copies[shard].last_sequence >= page.last_sequence
    }

    /// Returns the policy, or the deletion of one that was removed.
    fn or_deletion(&self, policy: Arc<TopicPolicy>, now: Time) -> Arc<TopicPolicy> {
        if !self.is_gone(&policy) {
            return policy;
        }
        let version = self.leading_horizon();
        let name = policy.name.clone();
        Arc::new(TopicPolicy { version, is_deleted: true, ..TopicPolicy::new(name, now) })
    }

    fn leading_horizon(&self) -> u64 {
        let complete = self.copies.iter().filter(|copy| copy.is_complete);
        complete.map(|copy| copy.horizon.version).max().unwrap_or(0)
    }

    /// Returns whether the policy was removed: no shard of those with the highest horizon has any of its name, and the
    /// horizon is not below it.
    fn is_gone(&self, policy: &TopicPolicy) -> bool {
        let horizon = self.leading_horizon();
        let leads = |copy: &&ShardCopy| copy.horizon.version == horizon;
        let lacks = |copy: &ShardCopy| copy.is_complete && copy.version(&policy.name) == 0;
        policy.is_live() && policy.version <= horizon && self.copies.iter().filter(leads).all(lacks)
    }

    /// Records what is news in the view.
    pub(super) fn note(&mut self, news: &[PolicyNews]) {
        for (last, policy) in news {
            let last = last.as_ref().filter(|last| !last.is_live());
            if let Some(last) = last {
                self.empty.remove(&(last.version, last.name.clone()));
            }
            if !policy.is_live() {
                self.empty.insert((policy.version, policy.name.clone()));
            }
            self.highest = self.highest.max(policy.version);
            for copy in self.copies.iter_mut().filter(|copy| copy.lacks(policy)) {
                copy.behind.insert(policy.name.clone());
            }
            // Its settings count from now on.
            self.reserved.retain(|name| *name != policy.name);
        }
    }

    /// Returns the policies that a shard is to get, at most `limit`, each with the version that it has.
    pub(super) fn writes(
        &mut self,
        shard: usize,
        view: &PolicyView,
        limit: usize,
    ) -> Vec<(Arc<TopicPolicy>, u64)> {
        let copy = &mut self.copies[shard];
        let due = |name| view.policy(name).filter(|policy| copy.lacks(policy));
        let writes: Vec<_> = copy.behind.iter().filter_map(due).take(limit).collect();
        let writes = writes.iter().map(|policy| (Arc::clone(policy), copy.version(&policy.name)));
        let writes: Vec<_> = writes.collect();
        // Names stay until nothing is due: a caller may go away while it writes.
        if writes.is_empty() {
            copy.behind.clear();
        }
        writes
    }

    /// Records the results of writes; returns those that were written. Without results they failed.
    pub(super) fn wrote(
        &mut self,
        shard: usize,
        policies: &[Arc<TopicPolicy>],
        results: &[PolicyWriteResult],
    ) -> Vec<Arc<TopicPolicy>> {
        let copy = &mut self.copies[shard];
        let mut written = Vec::new();
        for (index, policy) in policies.iter().enumerate() {
            match results.get(index) {
                Some(result) if result.is_written => {
                    copy.insert(policy);
                    written.push(Arc::clone(policy));
                }
                result => {
                    if let Some(result) = result {
                        copy.found(&policy.name, result.version);
                    }
                    copy.behind.insert(policy.name.clone());
                }
            }
        }
        written
    }

    /// Returns the number of policies of which nothing is left.
    pub(super) fn empty_count(&self) -> usize {
        self.empty.len()
    }

    /// Returns whether anything may have to be removed, or a horizon to be raised.
    pub(super) fn is_untidy(&self) -> bool {
        let horizons: BTreeSet<_> = self.copies.iter().map(|copy| copy.horizon.version).collect();
        !self.empty.is_empty() || horizons.len() > 1
    }

    /// Returns what each shard is to remove now, if all of them have had the same for `age`. All have just been read.
    pub(super) fn removals(&mut self, age: std::time::Duration) -> Option<Vec<PolicyRemoval>> {
        let is_equal = |copy: &ShardCopy| copy.is_complete && copy.behind.is_empty();
        if !self.is_untidy() || !self.copies.iter().all(is_equal) {
            self.equal_since = None;
            return None;
        }
        let last = self.empty.last().map_or(0, |(version, _)| *version);
        let (since, horizon) = self.equal_since.unwrap_or_else(|| {
            let since = (Instant::now(), last.max(self.leading_horizon()));
            *self.equal_since.insert(since)
        });
        if since.elapsed() < age {
            return None;
        }
        // One call's worth of the lowest versions, and those that have the last of these versions, too.
        let due = self.empty.iter().take_while(|(version, _)| *version <= horizon);
        let part = due.clone().nth(limit::CALL_JOBS_MAX - 1).map(|(version, _)| *version);
        if part.is_none() {
            self.equal_since = None;
        }
        let part = part.unwrap_or(horizon);
        let due: Vec<_> = due.take_while(|(version, _)| *version <= part).cloned().collect();
        // A shard with another version gets this one first: the horizon must not pass what it has not had.
        let mut is_outdated = false;
        for copy in &mut self.copies {
            for (version, name) in &due {
                if ![0, *version].contains(&copy.version(name)) {
                    copy.behind.insert(name.clone());
                    is_outdated = true;
                }
            }
        }
        if is_outdated {
            self.equal_since = None;
            return None;
        }
        let removal = |copy: &ShardCopy| {
            let stored = due
                .iter()
                .filter_map(|(_, name)| Some((name.clone(), copy.policies.get(name)?.version)));
            PolicyRemoval {
                last_sequence: copy.last_sequence,
                expected: copy.horizon.version,
                horizon: part.max(copy.horizon.version),
                policies: stored.collect(),
            }
        };
        Some(self.copies.iter().map(removal).collect())
    }

    /// Records that a shard has removed policies.
    pub(super) fn removed(&mut self, shard: usize, removal: &PolicyRemoval) {
        let copy = &mut self.copies[shard];
        for (name, _) in &removal.policies {
            copy.policies.remove(name);
        }
        let (version, sequence) = (removal.horizon, removal.last_sequence);
        copy.horizon = PolicyHorizon { version, sequence };
    }

    /// Removes from the view what all shards have removed.
    pub(super) fn forget_removed(&mut self, view: &mut PolicyView) {
        let complete = self.copies.iter().all(|copy| copy.is_complete);
        let lowest = self.copies.iter().map(|copy| copy.horizon.version).min();
        let Some(lowest) = lowest.filter(|_| complete) else { return };
        while let Some((version, name)) = self.empty.first().filter(|(v, _)| *v <= lowest).cloned()
        {
            self.empty.remove(&(version, name.clone()));
            view.remove(&name, version);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn policy(version: u64, is_deleted: bool) -> Arc<TopicPolicy> {
        let name = TopicPattern::parse("a").unwrap();
        Arc::new(TopicPolicy { version, is_deleted, ..TopicPolicy::new(name, Time(0)) })
    }

    /// Returns a view and a ledger of two shards that know this policy.
    fn known(policy: Arc<TopicPolicy>) -> (PolicyView, Ledger) {
        let (mut view, mut ledger) = (PolicyView::default(), Ledger::new(2));
        ledger.note(&view.merge(&[policy]));
        (view, ledger)
    }

    #[test]
    fn a_write_whose_caller_goes_away_is_due_again() {
        let (view, mut ledger) = known(policy(5, true));
        for _ in 0..3 {
            assert_eq!(ledger.writes(0, &view, 64), [(policy(5, true), 0)]);
        }
        let result = PolicyWriteResult { is_written: true, version: 5 };
        ledger.wrote(0, &[policy(5, true)], &[result]);
        assert_eq!(ledger.writes(0, &view, 64), []);
        assert_eq!(ledger.writes(1, &view, 64), [(policy(5, true), 0)]);
    }

    #[test]
    fn a_horizon_passes_no_version_that_a_shard_has_not_had() {
        for (version, is_removed) in [(5, true), (4, false)] {
            let (view, mut ledger) = known(policy(5, true));
            for (shard, version) in [5, version].into_iter().enumerate() {
                ledger.copies[shard].is_complete = true;
                ledger.copies[shard].insert(&policy(version, version == 5));
                ledger.copies[shard].behind.clear();
            }
            assert_eq!(ledger.removals(Duration::ZERO).is_some(), is_removed, "{version}");
            assert_eq!(
                ledger.writes(1, &view, 64).is_empty(),
                is_removed,
                "it gets this one first"
            );
        }
    }
}

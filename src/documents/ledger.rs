//! Documents that each shard has, as far as this replica has read, and those that it has to get.
//!
//! **Removal.** A document of which nothing is left has done its work once all shards have it: it only kept older versions
//! from coming back. Then each shard removes it and raises its *horizon* in the same write. Up to that version the shard has
//! had all documents, so that what it lacks was removed. A shard that comes back with older data, or a server that slept
//! meanwhile, has a lower horizon or must read anew, and what it brings is deleted instead of taken over
//! ([`Ledger::is_gone`]).

use std::collections::{BTreeSet, HashMap, HashSet};

use tokio::time::Instant;

use crate::domain::{Document, DocumentName, Time, TopicPattern, limit};
use crate::store::{DocumentHorizon, DocumentRemoval, DocumentWriteResult, DocumentsPage};

use super::view::{DocumentNews, DocumentView};

/// Documents that a shard has, as far as this replica has read them.
#[derive(Default)]
pub(super) struct ShardCopy {
    pub(super) last_sequence: u64,
    horizon: DocumentHorizon,
    /// True: everything was read that the shard had at some moment.
    is_complete: bool,
    documents: HashMap<DocumentName, Document>,
    /// Versions of documents that were not read, or cannot be: a newer one replaces them.
    unread: HashMap<DocumentName, u64>,
    /// True: the shard has documents of a newer version of ringq, of kinds that this one does not know.
    has_unknown: bool,
    /// Names whose document may be newer elsewhere.
    behind: HashSet<DocumentName>,
}

/// Copies of all shards, in their order.
pub(super) struct Ledger {
    pub(super) copies: Vec<ShardCopy>,
    /// Documents of which nothing is left, by version.
    empty: BTreeSet<(u64, DocumentName)>,
    /// Highest version that any shard has had.
    highest: u64,
    /// Since when all shards have had all documents up to this version.
    equal_since: Option<(Instant, u64)>,
    /// Topics and patterns that are getting settings.
    pub(super) reserved: Vec<TopicPattern>,
}

// === impl ShardCopy ===

impl ShardCopy {
    /// Records what the shard has.
    pub(super) fn insert(&mut self, document: &Document) {
        self.unread.remove(&document.name);
        self.documents.insert(document.name.clone(), document.clone());
    }

    /// Returns the version that a write to the shard has to expect.
    pub(super) fn version(&self, name: &DocumentName) -> u64 {
        let unread = self.unread.get(name).copied();
        unread.or_else(|| Some(self.documents.get(name)?.version)).unwrap_or(0)
    }

    /// Records the version that a refused write has found.
    fn found(&mut self, name: &DocumentName, version: u64) {
        self.documents.remove(name);
        match version {
            0 => drop(self.unread.remove(name)),
            version => drop(self.unread.insert(name.clone(), version)),
        }
    }

    /// Returns whether the shard has to get the document.
    fn lacks(&self, document: &Document) -> bool {
        let (stored, version) = (self.documents.get(&document.name), self.version(&document.name));
        match stored {
            Some(stored) => document.replaces(stored),
            None if version > 0 => document.version > version,
            None => document.is_live() || document.version > self.horizon.version,
        }
    }

    /// Returns whether the shard has lost data, or has removed documents that were not read before.
    fn must_be_read_anew(&self, page: &DocumentsPage) -> bool {
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
    pub(super) fn reset(&mut self, shard: usize, view: &DocumentView) {
        let behind = view.all().map(|document| document.name.clone()).collect();
        self.copies[shard] = ShardCopy { behind, ..ShardCopy::default() };
        self.equal_since = None;
    }

    /// Records a page of a shard. Returns what is to be merged, or `None` if the shard is to be read anew.
    pub(super) fn take(
        &mut self,
        shard: usize,
        page: &DocumentsPage,
        documents: Vec<Result<Document, (DocumentName, u64)>>,
        view: &DocumentView,
        now: Time,
    ) -> Option<Vec<Document>> {
        if self.copies[shard].must_be_read_anew(page) {
            self.reset(shard, view);
            return None;
        }
        self.highest = self.highest.max(page.horizon.version);
        let copy = &mut self.copies[shard];
        if copy.is_complete && copy.horizon.version < page.horizon.version {
            let removed = self.empty.iter().take_while(|(v, _)| *v <= page.horizon.version);
            for (version, name) in removed {
                if copy.documents.get(name).is_some_and(|document| document.version == *version) {
                    copy.documents.remove(name);
                }
            }
        }
        copy.horizon = page.horizon;
        copy.has_unknown |= page.has_unknown;
        let mut read = Vec::with_capacity(documents.len());
        for document in documents {
            match document {
                Ok(document) => {
                    copy.insert(&document);
                    copy.behind.insert(document.name.clone());
                    read.push(document);
                }
                Err((name, version)) => {
                    copy.documents.remove(&name);
                    copy.unread.insert(name, version);
                }
            }
        }
        let is_last = page.read_to >= page.last_sequence;
        copy.last_sequence = page.read_to.min(page.last_sequence);
        let was_complete = std::mem::replace(&mut copy.is_complete, true);
        copy.is_complete = was_complete || is_last;
        if copy.is_complete && !was_complete {
            // What the others had may have been removed here.
            read.extend(view.all().cloned());
        }
        Some(read.into_iter().map(|document| self.or_deletion(document, now)).collect())
    }

    /// Returns whether the shard is read up to its last change.
    pub(super) fn is_read(&self, shard: usize, page: &DocumentsPage) -> bool {
        self.copies[shard].last_sequence >= page.last_sequence
    }

    /// Returns the document, or the deletion of one that was removed.
    fn or_deletion(&self, document: Document, now: Time) -> Document {
        if !self.is_gone(&document) {
            return document;
        }
        let version = self.leading_horizon();
        Document { version, update_time: now, content: None, ..document }
    }

    fn leading_horizon(&self) -> u64 {
        let complete = self.copies.iter().filter(|copy| copy.is_complete);
        complete.map(|copy| copy.horizon.version).max().unwrap_or(0)
    }

    /// Returns whether the document was removed: no shard of those with the highest horizon has any of its name, and the
    /// horizon is not below it.
    fn is_gone(&self, document: &Document) -> bool {
        let horizon = self.leading_horizon();
        let leads = |copy: &&ShardCopy| copy.horizon.version == horizon;
        let lacks = |copy: &ShardCopy| copy.is_complete && copy.version(&document.name) == 0;
        document.is_live()
            && document.version <= horizon
            && self.copies.iter().filter(leads).all(lacks)
    }

    /// Records what is news in the view.
    pub(super) fn note(&mut self, news: &[DocumentNews]) {
        for (last, document) in news {
            let last = last.as_ref().filter(|last| !last.is_live());
            if let Some(last) = last {
                self.empty.remove(&(last.version, last.name.clone()));
            }
            if !document.is_live() {
                self.empty.insert((document.version, document.name.clone()));
            }
            self.highest = self.highest.max(document.version);
            for copy in self.copies.iter_mut().filter(|copy| copy.lacks(document)) {
                copy.behind.insert(document.name.clone());
            }
            // Its settings count from now on.
            let policy = document.topic_policy();
            self.reserved.retain(|name| policy.is_none_or(|policy| policy.name != *name));
        }
    }

    /// Returns the documents that a shard is to get, at most `limit`, each with the version that it has.
    pub(super) fn writes(
        &mut self,
        shard: usize,
        view: &DocumentView,
        limit: usize,
    ) -> Vec<(Document, u64)> {
        let copy = &mut self.copies[shard];
        let due = |name| view.document(name).filter(|document| copy.lacks(document));
        let writes: Vec<_> = copy.behind.iter().filter_map(due).take(limit).collect();
        let write = |document: &Document| (document.clone(), copy.version(&document.name));
        let writes: Vec<_> = writes.into_iter().map(write).collect();
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
        documents: &[Document],
        results: &[DocumentWriteResult],
    ) -> Vec<Document> {
        let copy = &mut self.copies[shard];
        let mut written = Vec::new();
        for (index, document) in documents.iter().enumerate() {
            match results.get(index) {
                Some(result) if result.is_written => {
                    copy.insert(document);
                    written.push(document.clone());
                }
                result => {
                    if let Some(result) = result {
                        copy.found(&document.name, result.version);
                    }
                    copy.behind.insert(document.name.clone());
                }
            }
        }
        written
    }

    /// Returns the number of documents of which nothing is left.
    pub(super) fn empty_count(&self) -> usize {
        self.empty.len()
    }

    /// Returns whether anything may have to be removed, or a horizon to be raised.
    pub(super) fn is_untidy(&self) -> bool {
        let horizons: BTreeSet<_> = self.copies.iter().map(|copy| copy.horizon.version).collect();
        !self.empty.is_empty() || horizons.len() > 1
    }

    /// Returns what each shard is to remove now, if all of them have had the same for `age`. All have just been read. Nothing
    /// while there are documents that only a newer version of ringq brings to all shards: the horizon must not pass those.
    pub(super) fn removals(&mut self, age: std::time::Duration) -> Option<Vec<DocumentRemoval>> {
        let is_equal =
            |copy: &ShardCopy| copy.is_complete && copy.behind.is_empty() && !copy.has_unknown;
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
                .filter_map(|(_, name)| Some((name.clone(), copy.documents.get(name)?.version)));
            DocumentRemoval {
                last_sequence: copy.last_sequence,
                expected: copy.horizon.version,
                horizon: part.max(copy.horizon.version),
                documents: stored.collect(),
            }
        };
        Some(self.copies.iter().map(removal).collect())
    }

    /// Records that a shard has removed documents.
    pub(super) fn removed(&mut self, shard: usize, removal: &DocumentRemoval) {
        let copy = &mut self.copies[shard];
        for (name, _) in &removal.documents {
            copy.documents.remove(name);
        }
        let (version, sequence) = (removal.horizon, removal.last_sequence);
        copy.horizon = DocumentHorizon { version, sequence };
    }

    /// Removes from the view what all shards have removed.
    pub(super) fn forget_removed(&mut self, view: &mut DocumentView) {
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
    use crate::domain::{DocumentContent, TopicPolicy};

    fn policy(version: u64, is_deleted: bool) -> Document {
        let name = TopicPattern::parse("a").unwrap();
        let policy = DocumentContent::from(TopicPolicy::new(name.clone(), Time(0)));
        let content = Some(policy).filter(|_| !is_deleted);
        Document { name: DocumentName::TopicPolicy(name), version, update_time: Time(0), content }
    }

    /// Returns a view and a ledger of two shards that know this policy.
    fn known(policy: Document) -> (DocumentView, Ledger) {
        let (mut view, mut ledger) = (DocumentView::default(), Ledger::new(2));
        ledger.note(&view.merge(&[policy]));
        (view, ledger)
    }

    #[test]
    fn a_write_whose_caller_goes_away_is_due_again() {
        let (view, mut ledger) = known(policy(5, true));
        for _ in 0..3 {
            assert_eq!(ledger.writes(0, &view, 64), [(policy(5, true), 0)]);
        }
        let result = DocumentWriteResult { is_written: true, version: 5 };
        ledger.wrote(0, &[policy(5, true)], &[result]);
        assert_eq!(ledger.writes(0, &view, 64), []);
        assert_eq!(ledger.writes(1, &view, 64), [(policy(5, true), 0)]);
    }

    #[test]
    fn a_page_of_documents_that_are_not_known_is_no_last_page() {
        let (view, mut ledger) = (DocumentView::default(), Ledger::new(1));
        for (read_to, is_read) in [(512, false), (1_024, false), (1_030, true)] {
            let horizon = DocumentHorizon::default();
            let page = DocumentsPage {
                documents: Vec::new(),
                has_unknown: true,
                read_to,
                last_sequence: 1_030,
                horizon,
            };
            assert_eq!(ledger.take(0, &page, Vec::new(), &view, Time(1)), Some(Vec::new()));
            assert_eq!(ledger.is_read(0, &page), is_read);
            assert_eq!(ledger.copies[0].last_sequence, read_to);
            assert_eq!(ledger.copies[0].is_complete, is_read);
        }
    }

    /// Newer servers write kinds that this one cannot bring to the shards that lack them.
    #[test]
    fn nothing_is_removed_beside_documents_of_an_unknown_kind() {
        for has_unknown in [false, true] {
            let (view, mut ledger) = known(policy(5, true));
            for (shard, has_unknown) in [false, has_unknown].into_iter().enumerate() {
                let page = DocumentsPage {
                    documents: Vec::new(),
                    has_unknown,
                    read_to: 1,
                    last_sequence: 1,
                    horizon: DocumentHorizon::default(),
                };
                let read = vec![Ok(policy(5, true))];
                ledger.take(shard, &page, read, &view, Time(0)).unwrap();
                ledger.copies[shard].behind.clear();
            }
            assert_eq!(ledger.removals(Duration::ZERO).is_none(), has_unknown);
        }
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

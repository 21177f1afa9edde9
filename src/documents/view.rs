//! Documents as a replica knows them: of each name the newest version that any shard has.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::domain::{
    Document, DocumentContent, DocumentName, FileRecord, PolicySource, PrefixMap, TopicName,
    TopicPattern, TopicPolicy, TopicSettings,
};

/// Number of parts of the names: a change copies the part of its name.
const PARTS: u64 = 256;

/// All known documents. Cheap to clone, and to change after that.
#[derive(Clone, Debug)]
pub struct DocumentView {
    /// Documents by their keys.
    parts: Vec<Arc<HashMap<Box<str>, Document>>>,
    /// Policies of patterns that are in force.
    patterns: Arc<PrefixMap<Arc<TopicPolicy>>>,
    /// Number of policies with settings.
    settings: usize,
}

/// A document that was news, and the one that it replaces.
pub(super) type DocumentNews = (Option<Document>, Document);

// === impl DocumentView ===

impl Default for DocumentView {
    fn default() -> DocumentView {
        DocumentView {
            parts: (0..PARTS).map(|_| Arc::default()).collect(),
            patterns: Arc::default(),
            settings: 0,
        }
    }
}

fn part_of(key: &str) -> usize {
    (xxh3_64(key.as_bytes()) % PARTS) as usize
}

/// Returns the key of a name. That of a policy is its topic or pattern alone, so that a topic finds its policy by its own
/// name. No other name is equal to one of these: each has a `/`.
fn key_of(name: &DocumentName) -> Cow<'_, str> {
    match name {
        DocumentName::TopicPolicy(TopicPattern::Exact(topic)) => topic.as_str().into(),
        DocumentName::TopicPolicy(pattern) => pattern.to_string().into(),
        DocumentName::TopicFile => name.to_string().into(),
    }
}

impl DocumentView {
    /// Returns the document of this name; also one of which nothing is left.
    pub(super) fn document(&self, name: &DocumentName) -> Option<&Document> {
        let key = key_of(name);
        self.parts[part_of(&key)].get(&*key)
    }

    /// Returns the document with the policy of a topic; also one of which nothing is left.
    #[must_use]
    pub fn document_of(&self, topic: &TopicName) -> Option<&Document> {
        self.parts[part_of(topic.as_str())].get(topic.as_str())
    }

    /// Returns the policy of this topic or pattern; also one of which nothing is left.
    #[must_use]
    pub fn policy(&self, name: &TopicPattern) -> Option<&Arc<TopicPolicy>> {
        self.document(&DocumentName::TopicPolicy(name.clone()))?.topic_policy()
    }

    /// Returns the policy of a topic, also one of which nothing is left.
    #[must_use]
    pub fn of_topic(&self, topic: &TopicName) -> Option<&Arc<TopicPolicy>> {
        self.document_of(topic)?.topic_policy()
    }

    /// Returns the policy whose settings the topic has, all of them: its own, or that of the longest pattern that matches
    /// it. This is the one place that decides where a setting comes from.
    #[must_use]
    pub fn in_force(&self, topic: &TopicName) -> Option<&TopicPolicy> {
        let own = self.of_topic(topic).filter(|policy| policy.is_in_force());
        let matching = || Some(self.patterns.longest(topic.as_str())?.1);
        own.or_else(matching).map(|policy| &**policy)
    }

    /// Returns the settings of a topic, if any are in force.
    #[must_use]
    pub fn settings(&self, topic: &TopicName) -> Option<&TopicSettings> {
        self.in_force(topic)?.settings.as_ref()
    }

    /// Returns the revision of the file that the settings of the policy come from, if they do.
    #[must_use]
    pub fn file_revision(&self, policy: &TopicPolicy) -> Option<u64> {
        let PolicySource::File { revision } = policy.source else { return None };
        let record = self.file().filter(|_| policy.is_of_file());
        // While another file is written, the settings of this policy are those of the new or those of the former one.
        record.map(|record| record.former.map_or(record.revision, |former| former.max(revision)))
    }

    /// Returns the file that is in force, or is being written.
    #[must_use]
    pub fn file(&self) -> Option<FileRecord> {
        match self.document(&DocumentName::TopicFile)?.content {
            Some(DocumentContent::TopicFile(record)) => Some(record),
            Some(DocumentContent::TopicPolicy(_)) | None => None,
        }
    }

    /// Returns the number of policies with settings.
    #[must_use]
    pub fn settings_count(&self) -> usize {
        self.settings
    }

    /// Returns the number of topics with this prefix to which calls have given settings.
    #[must_use]
    pub fn settings_by_calls(&self, prefix: &str) -> usize {
        let counts = |policy: &&Arc<TopicPolicy>| {
            let topic = policy.topic().filter(|topic| topic.as_str().starts_with(prefix));
            topic.is_some() && policy.has_settings() && !policy.is_of_file()
        };
        self.policies().filter(counts).count()
    }

    /// Returns all policies, in no order.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<TopicPolicy>> {
        self.all().filter_map(Document::topic_policy)
    }

    /// Returns all documents, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Document> {
        self.parts.iter().flat_map(|part| part.values())
    }

    /// Adds documents; returns those that were news.
    pub(super) fn merge(&mut self, documents: &[Document]) -> Vec<DocumentNews> {
        let mut news = Vec::new();
        for document in documents {
            let known = self.document(&document.name);
            if known.is_none_or(|known| document.replaces(known)) {
                news.push((self.set(&document.name, Some(document)), document.clone()));
            }
        }
        news
    }

    /// Removes the document of a name, if it has this version.
    pub(super) fn remove(&mut self, name: &DocumentName, version: u64) {
        if self.document(name).is_some_and(|document| document.version == version) {
            self.set(name, None);
        }
    }

    fn set(&mut self, name: &DocumentName, document: Option<&Document>) -> Option<Document> {
        let key = key_of(name);
        let part = Arc::make_mut(&mut self.parts[part_of(&key)]);
        let last = match document {
            Some(document) => part.insert(Box::from(&*key), document.clone()),
            None => part.remove(&*key),
        };
        let policy = document.and_then(Document::topic_policy);
        let former = last.as_ref().and_then(Document::topic_policy);
        self.settings += usize::from(policy.is_some_and(|policy| policy.has_settings()));
        self.settings -= usize::from(former.is_some_and(|policy| policy.has_settings()));
        if let DocumentName::TopicPolicy(TopicPattern::Prefix(prefix)) = name {
            let in_force = policy.filter(|policy| policy.is_in_force()).cloned();
            Arc::make_mut(&mut self.patterns).set(prefix, in_force);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::Time;

    fn policy(name: &str, priority: Option<u8>) -> TopicPolicy {
        let settings = priority
            .map(|priority| TopicSettings { priority: Some(priority), ..TopicSettings::default() });
        let name = TopicPattern::parse(name).unwrap();
        TopicPolicy { settings, ..TopicPolicy::new(name, Time(0)) }
    }

    fn document(version: u64, policy: TopicPolicy) -> Document {
        let name = DocumentName::TopicPolicy(policy.name.clone());
        Document { name, version, update_time: Time(0), content: Some(policy.into()) }
    }

    fn priority(view: &DocumentView, topic: &str) -> Option<u8> {
        view.settings(&TopicName::stored(topic)).and_then(|settings| settings.priority)
    }

    #[test]
    fn a_topic_has_its_own_settings_or_those_of_the_longest_pattern() {
        let mut view = DocumentView::default();
        assert!(view.merge(&[]).is_empty());
        let all = [("*", 1), ("billing.*", 2), ("billing.eu.*", 3), ("billing.eu.vip", 4)];
        let news =
            view.merge(&all.map(|(name, priority)| document(1, policy(name, Some(priority)))));
        assert_eq!((news.len(), view.settings_count()), (4, 4));
        // Neither a pause alone hides a pattern, nor settings of a call that set nothing.
        let created = TopicPolicy {
            settings: Some(TopicSettings::default()),
            ..policy("billing.eu.new", None)
        };
        assert_eq!(
            view.merge(&[document(1, policy("billing.us", None)), document(1, created)]).len(),
            2
        );
        for (topic, want) in [
            ("mail", 1),
            ("billing.us", 2),
            ("billing.eu.x", 3),
            ("billing.eu.new", 3),
            ("billing.eu.vip", 4),
            ("billing.eu.vip2", 3),
        ] {
            assert_eq!(priority(&view, topic), Some(want), "{topic}");
        }
        assert_eq!(view.settings_by_calls("billing."), 2);
    }

    #[test]
    fn older_versions_are_no_news_and_deleted_ones_have_no_settings() {
        let mut view = DocumentView::default();
        assert_eq!(view.merge(&[document(2, policy("a.*", Some(2)))]).len(), 1);
        assert!(view.merge(&[1, 2].map(|n| document(n.into(), policy("a.*", Some(n))))).is_empty());
        assert_eq!(priority(&view, "a.b"), Some(2));
        let deleted = Document { content: None, ..document(3, policy("a.*", Some(3))) };
        assert_eq!(view.merge(&[deleted]).len(), 1);
        assert_eq!((priority(&view, "a.b"), view.all().count()), (None, 1));
        assert_eq!(view.settings_count(), 0);
        let name = DocumentName::TopicPolicy(TopicPattern::parse("a.*").unwrap());
        view.remove(&name, 2);
        assert_eq!(view.all().count(), 1, "it has another version");
        view.remove(&name, 3);
        assert_eq!(view.all().count(), 0);
    }

    #[test]
    fn the_revision_of_a_policy_is_that_of_the_file_in_force() {
        let of_file = |name: &str, revision| TopicPolicy {
            source: PolicySource::File { revision },
            ..policy(name, Some(1))
        };
        let record = |revision, former| {
            let file = FileRecord { revision, digest: 0, former };
            let content = Some(DocumentContent::TopicFile(file));
            let name = DocumentName::TopicFile;
            Document { name, version: revision, update_time: Time(0), content }
        };
        let mut view = DocumentView::default();
        let (changed, same) = (of_file("a", 7), of_file("b", 3));
        for (file, want) in
            [(record(6, None), [6, 6]), (record(7, Some(6)), [7, 6]), (record(8, None), [8, 8])]
        {
            view.merge(&[file]);
            assert_eq!([&changed, &same].map(|policy| view.file_revision(policy).unwrap()), want);
        }
        assert_eq!(view.file_revision(&policy("c", Some(1))), None);
        assert_eq!(
            (view.in_force(&TopicName::stored("ringq.topics")), view.settings_count()),
            (None, 0)
        );
    }
}

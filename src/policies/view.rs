//! Policies as a replica knows them: of each name the newest version that any shard has.

use std::collections::HashMap;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::domain::{
    FileRecord, PolicySource, PrefixMap, TopicName, TopicPattern, TopicPolicy, TopicSettings,
};

/// Number of parts of the names: a change copies the part of its name.
const PARTS: u64 = 256;

/// All known policies. Cheap to clone, and to change after that.
#[derive(Clone, Debug)]
pub struct PolicyView {
    /// Policies by the text of their names; topics are looked up by their names.
    parts: Vec<Arc<HashMap<Box<str>, Arc<TopicPolicy>>>>,
    /// Policies of patterns that are in force.
    patterns: Arc<PrefixMap<Arc<TopicPolicy>>>,
    file: Option<FileRecord>,
    /// Number of policies with settings.
    settings: usize,
}

/// A policy that was news, and the one that it replaces.
pub(super) type PolicyNews = (Option<Arc<TopicPolicy>>, Arc<TopicPolicy>);

// === impl PolicyView ===

impl Default for PolicyView {
    fn default() -> PolicyView {
        PolicyView {
            parts: (0..PARTS).map(|_| Arc::default()).collect(),
            patterns: Arc::default(),
            file: None,
            settings: 0,
        }
    }
}

fn part_of(name: &str) -> usize {
    (xxh3_64(name.as_bytes()) % PARTS) as usize
}

impl PolicyView {
    /// Returns the policy of this name; also one of which nothing is left.
    #[must_use]
    pub fn policy(&self, name: &TopicPattern) -> Option<&Arc<TopicPolicy>> {
        match name {
            TopicPattern::Exact(topic) => self.of_topic(topic),
            TopicPattern::Prefix(_) => self.named(&name.to_string()),
        }
    }

    /// Returns the policy of a topic, also one of which nothing is left.
    #[must_use]
    pub fn of_topic(&self, topic: &TopicName) -> Option<&Arc<TopicPolicy>> {
        self.named(topic.as_str())
    }

    fn named(&self, name: &str) -> Option<&Arc<TopicPolicy>> {
        self.parts[part_of(name)].get(name)
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
        let record = self.file.filter(|_| policy.is_of_file());
        // While another file is written, the settings of this policy are those of the new or those of the former one.
        record.map(|record| record.former.map_or(record.revision, |former| former.max(revision)))
    }

    /// Returns the file that is in force, or is being written.
    #[must_use]
    pub fn file(&self) -> Option<FileRecord> {
        self.file
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
        self.all().filter(counts).count()
    }

    /// Returns all policies, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<TopicPolicy>> {
        self.parts.iter().flat_map(|part| part.values())
    }

    /// Adds policies; returns those that were news.
    pub(super) fn merge(&mut self, policies: &[Arc<TopicPolicy>]) -> Vec<PolicyNews> {
        let mut news = Vec::new();
        for policy in policies {
            let known = self.policy(&policy.name);
            if known.is_none_or(|known| policy.replaces(known)) {
                news.push((self.set(&policy.name, Some(policy)), Arc::clone(policy)));
            }
        }
        news
    }

    /// Removes the policy of a name, if it has this version.
    pub(super) fn remove(&mut self, name: &TopicPattern, version: u64) {
        if self.policy(name).is_some_and(|policy| policy.version == version) {
            self.set(name, None);
        }
    }

    fn set(
        &mut self,
        name: &TopicPattern,
        policy: Option<&Arc<TopicPolicy>>,
    ) -> Option<Arc<TopicPolicy>> {
        let text = name.to_string();
        let part = Arc::make_mut(&mut self.parts[part_of(&text)]);
        let last = match policy {
            Some(policy) => part.insert(text.into(), Arc::clone(policy)),
            None => part.remove(&*text),
        };
        self.settings += usize::from(policy.is_some_and(|policy| policy.has_settings()));
        self.settings -= usize::from(last.as_ref().is_some_and(|last| last.has_settings()));
        if *name == TopicPattern::file_record() {
            self.file = policy.and_then(|policy| policy.file);
        } else if let TopicPattern::Prefix(prefix) = name {
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

    fn policy(name: &str, version: u64, priority: Option<u8>) -> Arc<TopicPolicy> {
        let settings = priority
            .map(|priority| TopicSettings { priority: Some(priority), ..TopicSettings::default() });
        let name = TopicPattern::parse(name).unwrap();
        Arc::new(TopicPolicy { version, settings, ..TopicPolicy::new(name, Time(0)) })
    }

    fn priority(view: &PolicyView, topic: &str) -> Option<u8> {
        view.settings(&TopicName::stored(topic)).and_then(|settings| settings.priority)
    }

    #[test]
    fn a_topic_has_its_own_settings_or_those_of_the_longest_pattern() {
        let mut view = PolicyView::default();
        assert!(view.merge(&[]).is_empty());
        let all = [("*", 1), ("billing.*", 2), ("billing.eu.*", 3), ("billing.eu.vip", 4)];
        let news = view.merge(&all.map(|(name, priority)| policy(name, 1, Some(priority))));
        assert_eq!((news.len(), view.settings_count()), (4, 4));
        // Neither a pause alone hides a pattern, nor settings of a call that set nothing.
        let created = TopicPolicy {
            settings: Some(TopicSettings::default()),
            ..(*policy("billing.eu.new", 1, None)).clone()
        };
        assert_eq!(view.merge(&[policy("billing.us", 1, None), Arc::new(created)]).len(), 2);
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
        let mut view = PolicyView::default();
        assert_eq!(view.merge(&[policy("a.*", 2, Some(2))]).len(), 1);
        assert!(view.merge(&[policy("a.*", 1, Some(1)), policy("a.*", 2, Some(2))]).is_empty());
        assert_eq!(priority(&view, "a.b"), Some(2));
        let deleted = TopicPolicy { is_deleted: true, ..(*policy("a.*", 3, Some(3))).clone() };
        assert_eq!(view.merge(&[Arc::new(deleted)]).len(), 1);
        assert_eq!((priority(&view, "a.b"), view.all().count()), (None, 1));
        assert_eq!(view.settings_count(), 0);
        let name = TopicPattern::parse("a.*").unwrap();
        view.remove(&name, 2);
        assert_eq!(view.all().count(), 1, "it has another version");
        view.remove(&name, 3);
        assert_eq!(view.all().count(), 0);
    }

    #[test]
    fn the_revision_of_a_policy_is_that_of_the_file_in_force() {
        let of_file = |name: &str, revision| TopicPolicy {
            source: PolicySource::File { revision },
            ..(*policy(name, 1, Some(1))).clone()
        };
        let record = |revision, former| {
            let name = TopicPattern::file_record();
            let file = Some(FileRecord { revision, digest: 0, former });
            Arc::new(TopicPolicy { version: revision, file, ..TopicPolicy::new(name, Time(0)) })
        };
        let mut view = PolicyView::default();
        let (changed, same) = (of_file("a", 7), of_file("b", 3));
        for (file, want) in
            [(record(6, None), [6, 6]), (record(7, Some(6)), [7, 6]), (record(8, None), [8, 8])]
        {
            view.merge(&[file]);
            assert_eq!([&changed, &same].map(|policy| view.file_revision(policy).unwrap()), want);
        }
        assert_eq!(view.file_revision(&policy("c", 1, Some(1))), None);
        assert_eq!(
            (view.in_force(&TopicName::stored("ringq.topics")), view.settings_count()),
            (None, 0)
        );
    }
}

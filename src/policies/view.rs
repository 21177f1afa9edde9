//! Policies as a replica knows them: of each name the newest version that any shard has.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::{TopicName, TopicPattern, TopicPolicy, TopicSettings};

/// All known policies.
#[derive(Clone, Debug, Default)]
pub struct PolicyView {
    by_name: HashMap<TopicPattern, Arc<TopicPolicy>>,
    /// Policies of patterns that are in force, the longest prefix first.
    patterns: Vec<(String, Arc<TopicPolicy>)>,
}

// === impl PolicyView ===

impl PolicyView {
    /// Returns the policy of this name; also one that only records a deletion.
    #[must_use]
    pub fn policy(&self, name: &TopicPattern) -> Option<&Arc<TopicPolicy>> {
        self.by_name.get(name)
    }

    /// Returns the policy of a topic, also one that only records its deletion.
    #[must_use]
    pub fn of_topic(&self, topic: &TopicName) -> Option<&Arc<TopicPolicy>> {
        self.by_name.get(&TopicPattern::Exact(topic.clone()))
    }

    /// Returns the policy whose settings the topic has: its own, or that of the longest pattern that matches it.
    #[must_use]
    pub fn in_force(&self, topic: &TopicName) -> Option<&TopicPolicy> {
        let own = self.of_topic(topic).filter(|policy| has_settings(policy));
        let matching = || {
            let mut patterns = self.patterns.iter();
            patterns.find(|(prefix, _)| topic.as_str().starts_with(prefix)).map(|(_, found)| found)
        };
        own.or_else(matching).map(|policy| &**policy)
    }

    /// Returns the settings of a topic, if any are in force.
    #[must_use]
    pub fn settings(&self, topic: &TopicName) -> Option<&TopicSettings> {
        self.in_force(topic)?.settings.as_ref()
    }

    /// Returns all policies, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Arc<TopicPolicy>> {
        self.by_name.values()
    }

    /// Adds policies; returns whether any was news.
    pub(super) fn merge(&mut self, policies: &[Arc<TopicPolicy>]) -> bool {
        let (mut is_news, mut are_patterns_news) = (false, false);
        for policy in policies {
            let known = self.by_name.get(&policy.name);
            if known.is_some_and(|known| !policy.replaces(known)) {
                continue;
            }
            self.by_name.insert(policy.name.clone(), Arc::clone(policy));
            (is_news, are_patterns_news) = (true, are_patterns_news || policy.topic().is_none());
        }
        if are_patterns_news {
            self.sort_patterns();
        }
        is_news
    }

    fn sort_patterns(&mut self) {
        let prefix = |policy: &Arc<TopicPolicy>| match &policy.name {
            TopicPattern::Prefix(prefix) => Some((prefix.clone(), Arc::clone(policy))),
            TopicPattern::Exact(_) => None,
        };
        let live = self.by_name.values().filter(|policy| has_settings(policy));
        self.patterns = live.filter_map(prefix).collect();
        self.patterns.sort_by(|(a, _), (b, _)| (b.len(), b).cmp(&(a.len(), a)));
    }
}

fn has_settings(policy: &TopicPolicy) -> bool {
    policy.settings.is_some() && !policy.is_deleted
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
        assert!(!view.merge(&[]));
        let all = [("*", 1), ("billing.*", 2), ("billing.eu.*", 3), ("billing.eu.vip", 4)];
        assert!(view.merge(&all.map(|(name, priority)| policy(name, 1, Some(priority)))));
        // A pause alone hides no pattern.
        assert!(view.merge(&[policy("billing.us", 1, None)]));
        for (topic, want) in [
            ("mail", 1),
            ("billing.us", 2),
            ("billing.eu.x", 3),
            ("billing.eu.vip", 4),
            ("billing.eu.vip2", 3),
        ] {
            assert_eq!(priority(&view, topic), Some(want), "{topic}");
        }
    }

    #[test]
    fn older_versions_are_no_news_and_deleted_ones_have_no_settings() {
        let mut view = PolicyView::default();
        assert!(view.merge(&[policy("a.*", 2, Some(2))]));
        assert!(!view.merge(&[policy("a.*", 1, Some(1)), policy("a.*", 2, Some(2))]));
        assert_eq!(priority(&view, "a.b"), Some(2));
        let deleted = TopicPolicy { is_deleted: true, ..(*policy("a.*", 3, Some(3))).clone() };
        assert!(view.merge(&[Arc::new(deleted)]));
        assert_eq!((priority(&view, "a.b"), view.all().count()), (None, 1));
    }
}

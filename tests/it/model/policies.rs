//! Policies of topics in the reference: their versions, the pauses of topics and the settings of groups.

use ringq::domain::{PolicyEffect, Time, TopicName};
use ringq::store::{DocumentWrite, DocumentWriteResult, TopicEffect, TopicRemainder};

use super::coverage::Seen;
use super::reference::Reference;

impl Reference {
    /// Returns the policies and their versions, in the order of their changes.
    pub(super) fn policies(&self) -> &[(TopicName, u64)] {
        &self.policies
    }

    /// Returns the version of the policy of a topic; 0: it has none.
    pub(super) fn policy_version(&self, topic: &TopicName) -> u64 {
        let found = self.policies.iter().find(|(name, _)| name == topic);
        found.map_or(0, |(_, version)| *version)
    }

    /// Stores a policy with its effects. That of a deleted topic comes after a prune: a topic with a record stays.
    pub(super) fn write_policy(&mut self, write: &DocumentWrite) -> DocumentWriteResult {
        let TopicEffect { topic, policy, groups, limits_bytes: _ } = effect_of(write);
        let version = self.policy_version(topic);
        let is_written = version == write.expected;
        self.seen.insert(Seen::Policy(name_of(*policy), is_written));
        if !is_written {
            return DocumentWriteResult { is_written, version };
        }
        self.policies.retain(|(name, _)| name != topic);
        self.policies.push((topic.clone(), write.version));
        self.settings.insert(topic.clone(), groups.clone());
        self.paused.remove(topic);
        match policy {
            // A topic with a policy exists.
            PolicyEffect::Deliver => self.total(topic, |_| ()),
            PolicyEffect::Pause { until } => {
                self.total(topic, |_| ());
                self.paused.insert(topic.clone(), until.unwrap_or(Time::MAX));
            }
            PolicyEffect::Release => {}
            PolicyEffect::Forget if self.of(topic).is_empty() => self.forget_topic(topic),
            PolicyEffect::Forget => {}
        }
        DocumentWriteResult { is_written, version: write.version }
    }

    /// Returns the topics that are paused without an end.
    pub(super) fn paused_for_good(&self) -> Vec<TopicName> {
        let paused = self.paused.iter().filter(|(_, until)| **until == Time::MAX);
        paused.map(|(topic, _)| topic.clone()).collect()
    }

    /// Returns the remainder of a claim from a paused topic, which gives nothing; `None`: it is not paused.
    pub(super) fn pause_of(&self, topic: &TopicName) -> Option<TopicRemainder> {
        let until = self.paused.get(topic).copied().filter(|&until| until > self.now())?;
        Some(match until {
            Time::MAX => TopicRemainder::Empty,
            until => TopicRemainder::ReadyAt(until),
        })
    }
}

/// Returns the effect of a policy: runs have none of patterns.
pub(super) fn effect_of(write: &DocumentWrite) -> &TopicEffect {
    write.effect.as_ref().expect("no policy of a pattern is drawn")
}

fn name_of(effect: PolicyEffect) -> &'static str {
    match effect {
        PolicyEffect::Deliver => "deliver",
        PolicyEffect::Pause { until: None } => "pause",
        PolicyEffect::Pause { until: Some(_) } => "pause until",
        PolicyEffect::Release => "release",
        PolicyEffect::Forget => "forget",
    }
}

//! Policies of topics: what operators set for one topic, or for all topics that a pattern matches.
//!
//! A policy is the content of a [document](super::document).

use std::collections::BTreeMap;
use std::time::Duration;

use super::ageing::PriorityAgeing;
use super::name::{GroupName, TopicName};
use super::pattern::TopicPattern;
use super::retry::RetryOverrides;
use super::time::Time;

/// Defaults and limits of the jobs of a topic; absent fields follow the server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopicSettings {
    /// A text for people.
    pub description: String,
    /// Retry policy, merged field by field over the server's and under the job's.
    pub retry: RetryOverrides,
    /// Lease of jobs for which neither job nor stream names one.
    pub lease: Option<Duration>,
    /// Retention of finished jobs that name none.
    pub retention: Option<Duration>,
    /// Retention of dead letters.
    pub dead_retention: Option<Duration>,
    /// Priority of jobs that name none.
    pub priority: Option<u8>,
    /// Waiting time that one level of priority is worth, at most
    /// [`limit::PRIORITY_AGEING_MAX`](super::limit::PRIORITY_AGEING_MAX); zero or `None`: priorities are strict levels.
    pub priority_ageing: Option<Duration>,
    /// Maximum number of bytes of one payload; `None`: the server's.
    pub max_payload_bytes: Option<u32>,
    /// Number of jobs that may wait, over all shards; `None`: any.
    pub max_jobs: Option<u64>,
    /// Number of bytes of the payloads, headers and checkpoints of all its stored jobs, over all shards; `None`: no limit.
    pub max_stored_bytes: Option<u64>,
    /// Rule for a new job of a full topic.
    pub on_full: OverflowPolicy,
    /// Weights of groups, 1 to [`limit::GROUP_WEIGHT_MAX`](super::limit::GROUP_WEIGHT_MAX); others have 1. Of topics only,
    /// not of patterns.
    pub group_weights: BTreeMap<GroupName, u8>,
    /// Settings of a newer version of ringq, as they are stored. A change of others keeps them.
    pub newer: Vec<u8>,
}

/// Rule for a new job of a topic that has as many waiting jobs as it may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// The new job is refused.
    #[default]
    Reject,
    /// The job of the lowest priority that has waited longest expires.
    DropOldest,
}

/// Stop of the delivery of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicPause {
    /// Time at which delivery resumes by itself; `None`: it does not.
    pub until: Option<Time>,
    /// Reason, for people.
    pub note: String,
    /// Fields of a newer version of ringq, as they are stored.
    pub newer: Vec<u8>,
}

/// Origin of the settings of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicySource {
    /// Calls of operators.
    #[default]
    Rpc,
    /// A file; calls do not change the settings.
    File {
        /// Revision of the file that changed them last; later ones may have the same settings.
        revision: u64,
    },
}

/// Policy of a topic or of the topics of a pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicPolicy {
    /// Topic or pattern.
    pub name: TopicPattern,
    /// Settings; `None`: those of the longest pattern that matches, if any. A policy that only pauses a topic has none.
    pub settings: Option<TopicSettings>,
    /// Origin of the settings.
    pub source: PolicySource,
    /// Pause; of topics only, not of patterns.
    pub pause: Option<TopicPause>,
    /// Paused groups, with the reasons for people; `None`: the jobs without a group.
    pub paused_groups: BTreeMap<Option<GroupName>, String>,
    /// Time at which the policy was created.
    pub create_time: Time,
    /// Fields of a newer version of ringq, as they are stored, but for those of the settings and of the pause. A change keeps
    /// them.
    pub newer: Vec<u8>,
}

/// Effect of the policy of a topic on what a shard itself does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyEffect {
    /// The jobs of the topic are delivered.
    Deliver,
    /// They are not delivered until that time by the store's clock; `None`: not until the next policy.
    Pause {
        /// That time.
        until: Option<Time>,
    },
    /// Nothing is left of the policy: as `Deliver`, but the topic is not kept for it.
    Release,
    /// The topic was deleted: a shard without any job of it forgets it.
    Forget,
}

// === impl TopicSettings ===

impl TopicSettings {
    /// Returns the ageing of priorities; `None`: they are strict levels.
    #[must_use]
    pub fn ageing(&self) -> Option<PriorityAgeing> {
        PriorityAgeing::of_setting(self.priority_ageing)
    }
}

// === impl TopicPolicy ===

impl TopicPolicy {
    /// Returns a policy without settings.
    #[must_use]
    pub fn new(name: TopicPattern, now: Time) -> TopicPolicy {
        TopicPolicy {
            name,
            settings: None,
            source: PolicySource::Rpc,
            pause: None,
            paused_groups: BTreeMap::new(),
            create_time: now,
            newer: Vec::new(),
        }
    }

    /// Returns the topic, unless the policy is that of a pattern.
    #[must_use]
    pub fn topic(&self) -> Option<&TopicName> {
        match &self.name {
            TopicPattern::Exact(topic) => Some(topic),
            TopicPattern::Prefix(_) => None,
        }
    }

    /// Returns whether delivery is stopped at `now`.
    #[must_use]
    pub fn is_paused(&self, now: Time) -> bool {
        self.pause.as_ref().is_some_and(|pause| pause.until.is_none_or(|until| until > now))
    }

    /// Returns whether delivery of the jobs of a group is stopped at `now`, by its pause or that of the topic.
    #[must_use]
    pub fn is_group_paused(&self, group: &Option<GroupName>, now: Time) -> bool {
        self.is_paused(now) || self.paused_groups.contains_key(group)
    }

    /// Returns the weights and pauses of groups: each group once, with its weight and whether it is paused.
    #[must_use]
    pub fn groups(&self) -> BTreeMap<Option<GroupName>, (u8, bool)> {
        let mut groups = BTreeMap::new();
        if self.topic().is_none() {
            return groups;
        }
        let weights = self.settings.iter().flat_map(|settings| &settings.group_weights);
        groups.extend(weights.map(|(group, weight)| (Some(group.clone()), (*weight, false))));
        for group in self.paused_groups.keys() {
            groups.entry(group.clone()).or_insert((1, true)).1 = true;
        }
        groups
    }

    /// Returns whether anything is left of the policy.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.settings.is_some() || self.pause.is_some() || !self.paused_groups.is_empty()
    }

    /// Returns whether it takes one of the [`limit::POLICIES_MAX`](super::limit::POLICIES_MAX) places.
    #[must_use]
    pub fn has_settings(&self) -> bool {
        self.settings.is_some()
    }

    /// Returns whether its settings are those of a file.
    #[must_use]
    pub fn is_of_file(&self) -> bool {
        self.has_settings() && matches!(self.source, PolicySource::File { .. })
    }

    /// Returns whether its settings count, and no pattern's: those of a call that set nothing do not.
    #[must_use]
    pub fn is_in_force(&self) -> bool {
        let sets_any = self.settings.as_ref().is_some_and(|all| *all != TopicSettings::default());
        self.is_of_file() || self.has_settings() && sets_any
    }

    /// Returns the effect on a shard.
    #[must_use]
    pub fn effect(&self) -> PolicyEffect {
        match &self.pause {
            Some(pause) => PolicyEffect::Pause { until: pause.until },
            None if self.is_live() => PolicyEffect::Deliver,
            None => PolicyEffect::Release,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> TopicPolicy {
        TopicPolicy::new(TopicPattern::parse("orders").unwrap(), Time(1))
    }

    #[test]
    fn groups_have_their_weights_and_pauses() {
        let group = |name: &str| GroupName::stored(name);
        let weights = [("a", 3), ("b", 5)].map(|(name, weight)| (group(name).unwrap(), weight));
        let settings = TopicSettings { group_weights: weights.into(), ..TopicSettings::default() };
        let paused = [group("b"), group("c"), None].map(|group| (group, String::new()));
        let policy =
            TopicPolicy { settings: Some(settings), paused_groups: paused.into(), ..policy() };
        let want = [
            (None, (1, true)),
            (group("a"), (3, false)),
            (group("b"), (5, true)),
            (group("c"), (1, true)),
        ];
        assert_eq!(policy.groups(), want.into());
    }

    #[test]
    fn a_pause_ends_at_its_time() {
        let paused = |until: Option<i64>| TopicPolicy {
            pause: Some(TopicPause { until: until.map(Time), ..TopicPause::default() }),
            ..policy()
        };
        assert!(!policy().is_paused(Time(5)));
        assert!(paused(None).is_paused(Time(5)) && paused(Some(6)).is_paused(Time(5)));
        assert!(!paused(Some(5)).is_paused(Time(5)), "from that time on it delivers");
    }
}

//! Policies of topics, as a shard stores them: it reads neither settings nor texts.

use bytes::Bytes;

use crate::domain::{PolicyEffect, TopicPattern};

use super::GroupSetting;

/// A policy to store in place of a known version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyWrite {
    /// Topic or pattern.
    pub name: TopicPattern,
    /// Version that the shard must have; 0: none.
    pub expected: u64,
    /// Version to store; 0: what is stored stays, and the write has its effect only.
    pub version: u64,
    /// Effect on the topic.
    pub effect: PolicyEffect,
    /// Settings of the groups of the topic, at most twice
    /// [`GROUP_SETTINGS_MAX`](crate::domain::limit::GROUP_SETTINGS_MAX), of distinct groups. They replace all former ones:
    /// other groups have weight 1 and are not paused. Not of patterns.
    pub groups: Vec<GroupSetting>,
    /// Policy in its stored form.
    pub body: Bytes,
}

/// A stored policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPolicy {
    /// Topic or pattern.
    pub name: TopicPattern,
    /// Version.
    pub version: u64,
    /// Number of the change that stored it, counted by the shard.
    pub sequence: u64,
    /// Policy in its stored form.
    pub body: Bytes,
}

/// Result of a [`PolicyWrite`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyWriteResult {
    /// False: the shard has another version than expected, and nothing was written.
    pub is_written: bool,
    /// Version that the shard has now; 0: none.
    pub version: u64,
}

/// Policies that a shard has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyHorizon {
    /// Up to this version the shard has had all policies: what it does not have of these was removed. 0: not known.
    pub version: u64,
    /// Number of the last change before the last removal: who has read up to it has read all that was removed.
    pub sequence: u64,
}

/// Policies to remove of which nothing is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyRemoval {
    /// Number of the last change that the shard must have.
    pub last_sequence: u64,
    /// Version of the horizon that the shard must have.
    pub expected: u64,
    /// Version of the horizon that it gets.
    pub horizon: u64,
    /// Policies, with the versions that the shard has.
    pub policies: Vec<(TopicPattern, u64)>,
}

/// Policies that were stored after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoliciesPage {
    /// Policies, in the order of their changes.
    pub policies: Vec<StoredPolicy>,
    /// Number of the last change of the shard; 0: there was none. Less than the caller knows: the shard has lost data.
    pub last_sequence: u64,
    /// Policies that the shard has removed.
    pub horizon: PolicyHorizon,
}

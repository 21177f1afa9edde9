//! Documents, as a shard stores them: it reads nothing of their bodies.

use bytes::Bytes;

use crate::domain::{DocumentName, PolicyEffect, TopicName};

use super::GroupSetting;

/// A document to store in place of a known version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentWrite {
    /// Name.
    pub name: DocumentName,
    /// Version that the shard must have; 0: none.
    pub expected: u64,
    /// Version to store; 0: what is stored stays, and the write has its effect only.
    pub version: u64,
    /// False: nothing is left of it but its version, and [`DocumentRemoval`] may remove it.
    pub is_live: bool,
    /// Document in its stored form.
    pub body: Bytes,
    /// Effect of the policy of a topic; `None`: any other document, which no shard looks at.
    pub effect: Option<TopicEffect>,
}

/// Effect of a write on a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicEffect {
    /// The topic.
    pub topic: TopicName,
    /// Effect on its deliveries.
    pub policy: PolicyEffect,
    /// True: its settings limit the bytes of its jobs; `None`: it has no settings.
    pub limits_bytes: Option<bool>,
    /// Settings of its groups, at most twice
    /// [`GROUP_SETTINGS_MAX`](crate::domain::limit::GROUP_SETTINGS_MAX), of distinct groups. They replace all former ones:
    /// other groups have weight 1 and are not paused.
    pub groups: Vec<GroupSetting>,
}

/// A stored document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDocument {
    /// Name.
    pub name: DocumentName,
    /// Version.
    pub version: u64,
    /// Document in its stored form.
    pub body: Bytes,
}

/// Result of a [`DocumentWrite`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DocumentWriteResult {
    /// False: the shard has another version than expected, and nothing was written.
    pub is_written: bool,
    /// Version that the shard has now; 0: none.
    pub version: u64,
}

/// Documents that a shard has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DocumentHorizon {
    /// Up to this version the shard has had all documents: what it does not have of these was removed. 0: not known.
    pub version: u64,
    /// Number of the last change before the last removal: who has read up to it has read all that was removed.
    pub sequence: u64,
}

/// Documents to remove of which nothing is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentRemoval {
    /// Number of the last change that the shard must have.
    pub last_sequence: u64,
    /// Version of the horizon that the shard must have.
    pub expected: u64,
    /// Version of the horizon that it gets.
    pub horizon: u64,
    /// Documents, with the versions that the shard has.
    pub documents: Vec<(DocumentName, u64)>,
}

/// Documents that were stored after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentsPage {
    /// Documents, in the order of their changes. Those of names that this build does not know are skipped.
    pub documents: Vec<StoredDocument>,
    /// True: some were skipped.
    pub has_unknown: bool,
    /// Number of the change up to which the page was read; the next page begins after it.
    pub read_to: u64,
    /// Number of the last change of the shard; 0: there was none. Less than the caller knows: the shard has lost data.
    pub last_sequence: u64,
    /// Documents that the shard has removed.
    pub horizon: DocumentHorizon,
}

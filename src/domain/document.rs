//! Documents: small values by name that all shards store and every server knows. Policies of topics are one kind of them.
//!
//! A document has a version, which rises with each change. Of two versions the higher one counts, so that a shard that was
//! away takes the newer one and cannot bring back a document that was deleted meanwhile. Each kind has a bound of its own:
//! it is in the comment of its [`DocumentName`].

use std::fmt;
use std::sync::Arc;

use super::pattern::TopicPattern;
use super::time::Time;
use super::topic_policy::TopicPolicy;

/// Name of a document, which includes its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DocumentName {
    /// Policy of a topic, or of the topics of a pattern. At most [`limit::POLICIES_MAX`](super::limit::POLICIES_MAX) have
    /// settings, and of those that calls set a namespace has its share.
    TopicPolicy(TopicPattern),
    /// Record of the file of topics that is in force: one document.
    TopicFile,
}

/// A version of a document. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Name.
    pub name: DocumentName,
    /// Version: higher than each that any shard had before it, of whatever name.
    pub version: u64,
    /// Time of the change.
    pub update_time: Time,
    /// Content; `None`: the document was deleted.
    pub content: Option<DocumentContent>,
}

/// Content of a document, by its kind.
#[derive(Clone, Debug, PartialEq)]
pub enum DocumentContent {
    /// Policy of a topic or of a pattern.
    TopicPolicy(Arc<TopicPolicy>),
    /// Record of the file of topics.
    TopicFile(FileRecord),
}

/// The file of topics that is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRecord {
    /// Its revision.
    pub revision: u64,
    /// Hash of its settings: two files of one revision can differ.
    pub digest: u64,
    /// While its tables are written: the revision that was in force before, or 0.
    pub former: Option<u64>,
}

// === impl DocumentName ===

impl DocumentName {
    /// Parses the name of a stored document; `None`: it is of a kind or of a form that another version of ringq has.
    pub(crate) fn stored(text: &str) -> Option<DocumentName> {
        match text.split_once('/')? {
            ("topic", pattern) => TopicPattern::parse(pattern).ok().map(DocumentName::TopicPolicy),
            ("file", "topics") => Some(DocumentName::TopicFile),
            _ => None,
        }
    }
}

/// Formats the name as it is stored: the kind, `/`, and the name within the kind.
impl fmt::Display for DocumentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DocumentName::TopicPolicy(pattern) => write!(f, "topic/{pattern}"),
            DocumentName::TopicFile => f.write_str("file/topics"),
        }
    }
}

// === impl Document ===

impl Document {
    /// Returns whether anything is left of the document but its version. One of which nothing is left is kept until all shards
    /// have it, so that an older version, which a shard that was away may have, does not come back.
    pub(crate) fn is_live(&self) -> bool {
        match &self.content {
            None => false,
            Some(DocumentContent::TopicPolicy(policy)) => policy.is_live(),
            Some(DocumentContent::TopicFile(_)) => true,
        }
    }

    /// Returns the policy, if it is one and was not deleted.
    pub(crate) fn topic_policy(&self) -> Option<&Arc<TopicPolicy>> {
        match &self.content {
            Some(DocumentContent::TopicPolicy(policy)) => Some(policy),
            Some(DocumentContent::TopicFile(_)) | None => None,
        }
    }

    /// Returns whether the document counts where `other` is known: it has the higher version, or an equal one that was
    /// decided elsewhere at the same moment and differs. Then the later one counts, by time and by text.
    pub(crate) fn replaces(&self, other: &Document) -> bool {
        let rank = |document: &Document| (document.version, document.update_time);
        rank(self) > rank(other)
            || rank(self) == rank(other)
                && self != other
                && format!("{self:?}") > format!("{other:?}")
    }
}

// === impl DocumentContent ===

impl From<TopicPolicy> for DocumentContent {
    fn from(policy: TopicPolicy) -> DocumentContent {
        DocumentContent::TopicPolicy(Arc::new(policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_higher_version_counts_and_of_two_equal_ones_always_the_same() {
        let name = TopicPattern::parse("orders").unwrap();
        let policy = DocumentContent::from(TopicPolicy::new(name.clone(), Time(1)));
        let record = FileRecord { revision: 3, digest: 4, former: None };
        for (name, content) in [
            (DocumentName::TopicPolicy(name), policy),
            (DocumentName::TopicFile, DocumentContent::TopicFile(record)),
        ] {
            let (name, content) = (&name, &Some(content));
            let of = |version| Document {
                name: name.clone(),
                version,
                update_time: Time(1),
                content: content.clone(),
            };
            assert!(of(2).replaces(&of(1)) && !of(1).replaces(&of(2)));
            assert!(!of(1).replaces(&of(1)), "nothing is news");
            let later = Document { update_time: Time(2), ..of(1) };
            assert!(later.replaces(&of(1)) && !of(1).replaces(&later));
            let other = Document { content: None, ..of(1) };
            assert_ne!(other.replaces(&of(1)), of(1).replaces(&other));
            assert!(!other.is_live());
        }
    }

    #[test]
    fn names_come_back_as_they_were_stored() {
        let pattern = |text| DocumentName::TopicPolicy(TopicPattern::parse(text).unwrap());
        for (name, text) in [
            (pattern("orders"), "topic/orders"),
            (pattern("orders.*"), "topic/orders.*"),
            (pattern("*"), "topic/*"),
            (DocumentName::TopicFile, "file/topics"),
        ] {
            // A new kind does not compile without a line here, and belongs in this list.
            match name {
                DocumentName::TopicPolicy(_) | DocumentName::TopicFile => {}
            }
            assert_eq!((name.to_string().as_str(), DocumentName::stored(text)), (text, Some(name)));
        }
        for unknown in
            ["", "/", "orders", "topic/", "topic/a/b", "topic/ringq.x", "file/", "file/x", "ring/a"]
        {
            assert_eq!(DocumentName::stored(unknown), None, "{unknown}");
        }
    }
}

//! Names of topics, groups and shards, and the reasons to reject one. Names are parsed and checked here only, so that the
//! rest of the system never has a malformed one.

use std::fmt;
use std::sync::Arc;

use super::limit;

/// A topic: `[A-Za-z0-9][A-Za-z0-9._:-]{0,127}`; dots form a hierarchy for globs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

/// A group of jobs within a topic, such as a tenant or a customer: 1 to 64 characters of `[A-Za-z0-9._:@-]`, the
/// characters of job ids. A job without a group has no `GroupName`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(Arc<str>);

/// A shard's name, `[a-z0-9]{1,8}`: written on the shard at first contact and never reused. Short enough to be stored
/// inline, because every receipt and every server-made id contains one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardName {
    /// Name, padded with zeros.
    bytes: [u8; limit::SHARD_NAME_BYTES_MAX],
    length: u8,
}

/// Reason why a name is rejected. The text names the accepted form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The name is empty.
    #[error("must not be empty")]
    Empty,
    /// The name has more than this number of bytes.
    #[error("must have at most {0} bytes")]
    TooLong(usize),
    /// The name has this character outside the allowed set; the second value describes the set.
    #[error("{0:?} is not allowed; use {1}")]
    Character(char, &'static str),
    /// The name has a prefix that is reserved for the server.
    #[error("names that begin with `ringq.` are reserved")]
    Reserved,
    /// The name contains `~`, which only server-made ids may contain.
    #[error("`~` is reserved for ids that the server makes")]
    Tilde,
}

const TOPIC_CHARS: &str = "letters, digits and . _ : - (beginning with a letter or digit)";
const GROUP_CHARS: &str = "letters, digits and . _ : @ -";
const SHARD_CHARS: &str = "lowercase letters and digits";

// === impl TopicName ===

impl TopicName {
    /// Checks a topic name.
    ///
    /// # Errors
    /// [`InvalidName`], with the accepted form.
    pub fn try_new(name: &str) -> Result<TopicName, InvalidName> {
        check(name, limit::TOPIC_BYTES_MAX, TOPIC_CHARS, |c| "._:-".contains(c))?;
        if let Some(first) = name.chars().next().filter(|c| !c.is_ascii_alphanumeric()) {
            return Err(InvalidName::Character(first, TOPIC_CHARS));
        }
        if name.starts_with("ringq.") {
            return Err(InvalidName::Reserved);
        }
        Ok(TopicName(name.into()))
    }

    /// Wraps a name that was checked before it was stored.
    #[must_use]
    pub fn stored(name: &str) -> TopicName {
        TopicName(name.into())
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl GroupName ===

impl GroupName {
    /// Checks a group.
    ///
    /// # Errors
    /// [`InvalidName`], with the accepted form.
    pub fn try_new(name: &str) -> Result<GroupName, InvalidName> {
        check(name, limit::GROUP_BYTES_MAX, GROUP_CHARS, |c| "._:@-".contains(c))?;
        Ok(GroupName(name.into()))
    }

    /// Wraps a group that was checked before it was stored; `None` if it is empty.
    #[must_use]
    pub fn stored(name: &str) -> Option<GroupName> {
        (!name.is_empty()).then(|| GroupName(name.into()))
    }

    /// Returns the group as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the group as text; empty for none.
    #[must_use]
    pub fn text(group: Option<&GroupName>) -> &str {
        group.map_or("", GroupName::as_str)
    }
}

// === impl ShardName ===

impl ShardName {
    /// Checks a shard name.
    ///
    /// # Errors
    /// [`InvalidName`], with the accepted form.
    pub fn try_new(name: &str) -> Result<ShardName, InvalidName> {
        check(name, limit::SHARD_NAME_BYTES_MAX, SHARD_CHARS, |_| false)?;
        match name.chars().find(char::is_ascii_uppercase) {
            Some(upper) => Err(InvalidName::Character(upper, SHARD_CHARS)),
            None => Ok(ShardName::held(name)),
        }
    }

    /// Wraps a name that was checked.
    pub(super) fn held(name: &str) -> ShardName {
        let mut bytes = [0; limit::SHARD_NAME_BYTES_MAX];
        let length = name.len().min(bytes.len());
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        ShardName { bytes, length: u8::try_from(length).unwrap_or(0) }
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

/// Checks length and characters of a name; `punctuation` is allowed beside letters and digits.
pub(super) fn check(
    name: &str,
    bytes_max: usize,
    allowed: &'static str,
    punctuation: impl Fn(char) -> bool,
) -> Result<(), InvalidName> {
    if name.is_empty() {
        return Err(InvalidName::Empty);
    }
    if name.len() > bytes_max {
        return Err(InvalidName::TooLong(bytes_max));
    }
    match name.chars().find(|&c| !c.is_ascii_alphanumeric() && !punctuation(c)) {
        Some(c) => Err(InvalidName::Character(c, allowed)),
        None => Ok(()),
    }
}

// === Display ===

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShardName").field(&self.as_str()).finish()
    }
}

impl fmt::Display for ShardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_checked() {
        for good in ["a", "billing.eu:v2", "9-lives", &"t".repeat(128)] {
            assert!(TopicName::try_new(good).is_ok(), "{good}");
        }
        for bad in ["", ".a", "-a", "a b", "a/b", "ringq.x", "ä", "a~b", &"t".repeat(129)] {
            assert!(TopicName::try_new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn groups_are_checked() {
        for good in ["a", "-", "tenant-7@example.com", "a:b.c_d", &"g".repeat(64)] {
            assert!(GroupName::try_new(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a/b", "a~b", "ä", "a\0", &"g".repeat(65)] {
            assert!(GroupName::try_new(bad).is_err(), "{bad}");
        }
    }
}

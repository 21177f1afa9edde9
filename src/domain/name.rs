//! Names of topics and shards, and why one is refused. Parsed and checked here only, so that the rest of the
//! system never sees a malformed one.

use std::fmt;
use std::sync::Arc;

use super::limit;

/// A topic: `[A-Za-z0-9][A-Za-z0-9._:-]{0,127}`; dots form a hierarchy for globs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

/// A shard's name, `[a-z0-9]{1,8}`: written on the shard at first contact and never reused. So short that it
/// is held in place: every receipt and every id of the server's own names one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardName {
    /// Zeros behind the name.
    bytes: [u8; limit::SHARD_NAME_BYTES_MAX],
    length: u8,
}

/// Why a name was refused. The text tells a person what would be accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The name is empty.
    #[error("must not be empty")]
    Empty,
    /// The name has more than so many bytes.
    #[error("must have at most {0} bytes")]
    TooLong(usize),
    /// A character outside the allowed set, and that set.
    #[error("{0:?} is not allowed; use {1}")]
    Character(char, &'static str),
    /// Topics of this prefix belong to the server.
    #[error("names that begin with `ringq.` are reserved")]
    Reserved,
    /// `~` marks ids that the server made, and this is none of them.
    #[error("`~` is reserved for ids that the server makes")]
    Tilde,
}

const TOPIC_CHARS: &str = "letters, digits and . _ : - (beginning with a letter or digit)";
const SHARD_CHARS: &str = "lowercase letters and digits";

// === impl TopicName ===

impl TopicName {
    /// Checks and takes a topic name.
    ///
    /// # Errors
    /// [`InvalidName`], with what would be accepted.
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

    /// A name that was checked before it was stored.
    #[must_use]
    pub fn stored(name: &str) -> TopicName {
        TopicName(name.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

// === impl ShardName ===

impl ShardName {
    /// Checks and takes a shard name.
    ///
    /// # Errors
    /// [`InvalidName`], with what would be accepted.
    pub fn try_new(name: &str) -> Result<ShardName, InvalidName> {
        check(name, limit::SHARD_NAME_BYTES_MAX, SHARD_CHARS, |_| false)?;
        match name.chars().find(char::is_ascii_uppercase) {
            Some(upper) => Err(InvalidName::Character(upper, SHARD_CHARS)),
            None => Ok(ShardName::held(name)),
        }
    }

    /// A name that was checked.
    pub(super) fn held(name: &str) -> ShardName {
        let mut bytes = [0; limit::SHARD_NAME_BYTES_MAX];
        let length = name.len().min(bytes.len());
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        ShardName { bytes, length: u8::try_from(length).unwrap_or(0) }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

/// Checks length and characters; `punctuation` is allowed beside letters and digits.
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
}

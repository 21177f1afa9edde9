//! Ids of jobs: those that clients choose, and those that servers make.

use std::fmt;
use std::sync::Arc;

use super::limit;
use super::name::{InvalidName, ShardName, TopicName, check};
use super::time::Time;

/// A job's id within its topic; see [`JobId::try_chosen`] and [`JobId::server_made`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Arc<str>);

/// `(topic, id)`: the identity of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// The topic.
    pub topic: TopicName,
    /// The id within it.
    pub id: JobId,
}

const ID_CHARS: &str = "letters, digits and . _ : @ -";
/// Characters of a UUID in base 32.
const UUID_CHARS: usize = 26;
/// Base 32 with digits first (RFC 4648 "base32hex", lowercase): sorts like the number it encodes.
const BASE32: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
/// By byte, whether it is one of [`BASE32`].
const IS_BASE32: [bool; 256] = {
    let (mut is, mut at) = ([false; 256], 0);
    while at < BASE32.len() {
        is[BASE32[at] as usize] = true;
        at += 1;
    }
    is
};

// === impl JobId ===

impl JobId {
    /// Checks and takes an id that a client sent: one of its own choice, or one that a server made
    /// earlier (a repeat of an enqueue whose outcome was unknown).
    ///
    /// # Errors
    /// [`InvalidName`], with what would be accepted.
    pub fn try_new(id: &str) -> Result<JobId, InvalidName> {
        if is_server_made(id) { Ok(JobId(id.into())) } else { JobId::try_chosen(id) }
    }

    /// Checks and takes an id of a client's own choice: 1 to 128 of `[A-Za-z0-9._:@-]`.
    ///
    /// # Errors
    /// [`InvalidName`], with what would be accepted.
    pub fn try_chosen(id: &str) -> Result<JobId, InvalidName> {
        if id.contains('~') {
            return Err(InvalidName::Tilde);
        }
        check(id, limit::ID_BYTES_MAX, ID_CHARS, |c| "._:@-".contains(c))?;
        Ok(JobId(id.into()))
    }

    /// `<shard>~<26 characters>`: an id that carries its shard and is never hashed.
    /// `uuid` is the 128 bits of a UUIDv7, so ids of one shard sort by their age.
    #[must_use]
    pub fn server_made(shard: &ShardName, uuid: u128) -> JobId {
        let mut text = [b'~'; limit::SHARD_NAME_BYTES_MAX + 1 + UUID_CHARS];
        let name = shard.as_str().as_bytes();
        text[..name.len()].copy_from_slice(name);
        let digits = &mut text[name.len() + 1..][..UUID_CHARS];
        let mut left = uuid;
        for digit in digits.iter_mut().rev() {
            *digit = BASE32[usize::try_from(left & 31).unwrap_or(0)];
            left >>= 5;
        }
        let text = std::str::from_utf8(&text[..name.len() + 1 + UUID_CHARS]);
        JobId(text.unwrap_or_default().into())
    }

    /// An id that was checked before it was stored.
    #[must_use]
    pub fn stored(id: &str) -> JobId {
        JobId(id.into())
    }

    /// The shard that a server-made id names; none for an id that a client chose.
    #[must_use]
    pub fn shard(&self) -> Option<ShardName> {
        self.0.split_once('~').map(|(shard, _)| ShardName::held(shard))
    }

    /// When a server made it, by that server's clock, in whole milliseconds; none for an id that a client
    /// chose.
    #[must_use]
    pub fn made_at(&self) -> Option<Time> {
        let (_, uuid) = self.0.split_once('~')?;
        let digit = |byte| BASE32.iter().position(|digit| *digit == byte);
        let uuid =
            uuid.bytes().try_fold(0u128, |uuid, byte| Some(uuid << 5 | digit(byte)? as u128))?;
        // The first 48 bits of a UUIDv7 are milliseconds since the Unix epoch (RFC 9562, section 5.7).
        Some(Time(i64::try_from(uuid >> 80).ok()?.saturating_mul(1_000)))
    }

    /// The id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_server_made(id: &str) -> bool {
    id.split_once('~').is_some_and(|(shard, uuid)| {
        ShardName::try_new(shard).is_ok()
            && uuid.len() == UUID_CHARS
            && uuid.bytes().all(|byte| IS_BASE32[usize::from(byte)])
    })
}

// === Display ===

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `topics/{topic}/jobs/{id}`: the name that errors carry (AIP-122).
impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topics/{}/jobs/{}", self.topic, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked() {
        for good in ["a", "user@example.org", "a:b.c-d_e", &"i".repeat(128)] {
            assert!(JobId::try_new(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a/b", "s0~short", "~", &"i".repeat(129)] {
            assert!(JobId::try_new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_server_made_id_says_when() {
        let shard = ShardName::try_new("s0").unwrap();
        let id = JobId::server_made(&shard, (1_800_000_000_123 << 80) | u128::from(u64::MAX));
        assert_eq!(id.made_at(), Some(Time(1_800_000_000_123_000)));
        assert_eq!(
            JobId::server_made(&shard, u128::MAX).made_at(),
            Some(Time(((1 << 48) - 1) * 1_000))
        );
        assert_eq!(JobId::try_new("order-4").unwrap().made_at(), None);
    }

    #[test]
    fn server_made_ids_sort_by_uuid_and_name_their_shard() {
        let shard = ShardName::try_new("s0").unwrap();
        let (one, two) = (JobId::server_made(&shard, 1 << 90), JobId::server_made(&shard, 1 << 91));
        assert!(one < two);
        assert_eq!(one.shard(), Some(shard));
        assert_eq!(one.as_str().len(), 2 + 1 + 26);
        assert_eq!(JobId::try_new(one.as_str()), Ok(one.clone()));
        assert!(JobId::try_chosen(one.as_str()).is_err());
    }
}

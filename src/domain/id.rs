//! Ids of jobs, of three kinds: chosen by clients, derived from a request id, and made by servers. Each kind has a form
//! of its own, so that an id has exactly one kind.

use std::fmt;
use std::sync::Arc;

use super::limit;
use super::name::{InvalidName, ShardName, TopicName, check};
use super::time::Time;

/// A job's id within its topic; see [`JobId::try_chosen`], [`JobId::from_request_id`] and [`JobId::from_uuid`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Arc<str>);

/// `(topic, id)`: the identity of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// The topic.
    pub topic: TopicName,
    /// The id within the topic.
    pub id: JobId,
}

const ID_CHARS: &str = "letters, digits and . _ : @ -";
/// Prefix of an id derived from a request id. No chosen id and no request id contains `=`.
const REQUEST_ID_PREFIX: &str = "r=";
/// Most digits of an index: a client that numbers the lines of a file needs many.
const INDEX_DIGITS_MAX: usize = 20;
/// Number of characters of a server-made id, after the `~`, that encode its second, see [`second_prefix`].
pub const SECOND_CHARS: usize = 8;
/// Milliseconds of a second in a server-made id.
const SECOND_MILLIS: i64 = 1 << 10;
/// Number of characters of a UUID in base 32.
const UUID_CHARS: usize = 26;
/// Base 32 with digits first (RFC 4648 "base32hex", lowercase): sorts like the number it encodes.
const BASE32: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
/// Index in [`BASE32`] of each byte; [`NO_DIGIT`]: not a digit.
const DIGITS: [u8; 256] = {
    let (mut digits, mut at) = ([NO_DIGIT; 256], 0);
    while at < BASE32.len() {
        digits[BASE32[at] as usize] = at as u8;
        at += 1;
    }
    digits
};
const NO_DIGIT: u8 = u8::MAX;
/// Number of characters of a server-made id, after the `~`, that encode its millisecond: the first 48 bits of a UUIDv7
/// (RFC 9562, section 5.7), after the two bits that 26 characters have more than a UUID.
const MILLIS_CHARS: usize = 10;

// === impl JobId ===

impl JobId {
    /// Checks an id of any kind that a client sent.
    ///
    /// # Errors
    /// [`InvalidName`], with the accepted form.
    pub fn try_new(id: &str) -> Result<JobId, InvalidName> {
        if is_server_made(id) || is_of_request(id) {
            Ok(JobId(id.into()))
        } else {
            JobId::try_chosen(id)
        }
    }

    /// Checks an id that a client chose: 1 to 128 characters of `[A-Za-z0-9._:@-]`.
    ///
    /// # Errors
    /// [`InvalidName`], with the accepted form.
    pub fn try_chosen(id: &str) -> Result<JobId, InvalidName> {
        if id.contains('~') {
            return Err(InvalidName::Tilde);
        }
        check(id, limit::ID_BYTES_MAX, ID_CHARS, |c| "._:@-".contains(c))?;
        Ok(JobId(id.into()))
    }

    /// Builds the id of a job whose client gave a request id and no id: `r=<request id>`, in a batch
    /// `r=<request id>=<index>`. `request_id` has been checked with [`JobId::try_chosen`].
    #[must_use]
    pub fn from_request_id(request_id: &str, index: Option<usize>) -> JobId {
        match index {
            None => JobId(format!("{REQUEST_ID_PREFIX}{request_id}").into()),
            Some(index) => JobId(format!("{REQUEST_ID_PREFIX}{request_id}={index}").into()),
        }
    }

    /// Returns the request id that this id is derived from, alone or in a batch; `None` for an id of another kind.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        let rest = self.0.strip_prefix(REQUEST_ID_PREFIX)?;
        Some(rest.split_once('=').map_or(rest, |(request_id, _)| request_id))
    }

    /// Builds a server-made id: `<shard>~<26 characters>`. It contains its shard and is never hashed. `uuid` is the 128
    /// bits of a UUIDv7, so ids of one shard sort by age.
    #[must_use]
    pub fn from_uuid(shard: &ShardName, uuid: u128) -> JobId {
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

    /// Wraps an id that was checked before it was stored.
    #[must_use]
    pub fn stored(id: &str) -> JobId {
        JobId(id.into())
    }

    /// Returns the shard in a server-made id; `None` for an id of another kind.
    #[must_use]
    pub fn shard(&self) -> Option<ShardName> {
        self.0.split_once('~').map(|(shard, _)| ShardName::held(shard))
    }

    /// Returns the time at which a server made the id, by that server's clock, in whole milliseconds; `None` for an id
    /// of another kind.
    #[must_use]
    pub fn created_at(&self) -> Option<Time> {
        created_at(&self.0)
    }

    /// Returns the second in which a server made the id, as [`second_prefix`] encodes it; `None` for an id of another
    /// kind.
    #[must_use]
    pub fn created_second(&self) -> Option<&str> {
        self.0.split_once('~')?.1.get(..SECOND_CHARS)
    }

    /// Returns the id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns [`JobId::created_at`] of an id in stored form.
#[must_use]
pub fn created_at(id: &str) -> Option<Time> {
    let digits = id.split_once('~')?.1.as_bytes().get(..MILLIS_CHARS)?;
    let millis =
        digits.iter().try_fold(0, |millis: i64, &byte| match DIGITS[usize::from(byte)] {
            NO_DIGIT => None,
            digit => Some(millis << 5 | i64::from(digit)),
        })?;
    Some(Time(millis.saturating_mul(1_000)))
}

/// Returns the encoding of a second (1,024 ms): the prefix, after the shard, of ids that a server made in it. Prefixes
/// sort like the times.
#[must_use]
pub fn second_prefix(time: Time) -> [u8; SECOND_CHARS] {
    let mut left = u64::try_from(time.0 / 1_000 / SECOND_MILLIS).unwrap_or(0);
    let mut name = [0; SECOND_CHARS];
    for digit in name.iter_mut().rev() {
        *digit = BASE32[usize::try_from(left & 31).unwrap_or(0)];
        left >>= 5;
    }
    name
}

fn is_server_made(id: &str) -> bool {
    id.split_once('~').is_some_and(|(shard, uuid)| {
        ShardName::try_new(shard).is_ok()
            && uuid.len() == UUID_CHARS
            && uuid.bytes().all(|byte| DIGITS[usize::from(byte)] != NO_DIGIT)
    })
}

/// Returns whether the id has the form of [`JobId::from_request_id`].
fn is_of_request(id: &str) -> bool {
    let Some(rest) = id.strip_prefix(REQUEST_ID_PREFIX) else { return false };
    let (request_id, index) = rest.split_once('=').map_or((rest, "0"), |parts| parts);
    request_id.len() <= limit::REQUEST_ID_BYTES_MAX
        && JobId::try_chosen(request_id).is_ok()
        && (1..=INDEX_DIGITS_MAX).contains(&index.len())
        && index.bytes().all(|byte| byte.is_ascii_digit())
}

// === Display ===

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Formats the key as `topics/{topic}/jobs/{id}`, the resource name in errors (AIP-122).
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
    fn an_id_of_a_request_is_of_no_other_kind() {
        let longest = "r".repeat(limit::REQUEST_ID_BYTES_MAX);
        for request_id in ["x", "x:1", "1", &longest] {
            for index in [None, Some(0), Some(1), Some(999), Some(usize::MAX)] {
                let id = JobId::from_request_id(request_id, index);
                assert_eq!(JobId::try_new(id.as_str()), Ok(id.clone()));
                assert!(JobId::try_chosen(id.as_str()).is_err(), "{id}");
                assert_eq!(
                    (id.request_id(), id.shard(), id.created_at()),
                    (Some(request_id), None, None)
                );
            }
        }
        assert_eq!(JobId::from_request_id("x", None).as_str(), "r=x");
        assert_eq!(JobId::from_request_id("x", Some(7)).as_str(), "r=x=7");
        for other in
            ["r=", "r==1", "r=x=", "r=x=y", "r=x=1=2", "b=x", "r=a b", &format!("r={longest}x")]
        {
            assert!(JobId::try_new(other).is_err(), "{other}");
        }
        assert_eq!(JobId::stored("r:x").request_id(), None);
    }

    #[test]
    fn a_server_made_id_contains_its_creation_time() {
        let shard = ShardName::try_new("s0").unwrap();
        let id = JobId::from_uuid(&shard, (1_800_000_000_123 << 80) | u128::from(u64::MAX));
        assert_eq!(id.created_at(), Some(Time(1_800_000_000_123_000)));
        assert_eq!(
            JobId::from_uuid(&shard, u128::MAX).created_at(),
            Some(Time(((1 << 48) - 1) * 1_000))
        );
        assert_eq!(JobId::try_new("order-4").unwrap().created_at(), None);
        assert_eq!(JobId::try_new("order-4").unwrap().created_second(), None);
        let second = String::from_utf8(second_prefix(id.created_at().unwrap()).to_vec()).unwrap();
        assert_eq!(id.created_second(), Some(&*second));
        for (time, expected) in [(0, "00000000"), (1_023_999, "00000000"), (1_024_000, "00000001")]
        {
            assert_eq!(second_prefix(Time(time)), *expected.as_bytes(), "{time}");
        }
    }

    #[test]
    fn server_made_ids_sort_by_uuid_and_name_their_shard() {
        let shard = ShardName::try_new("s0").unwrap();
        let (one, two) = (JobId::from_uuid(&shard, 1 << 90), JobId::from_uuid(&shard, 1 << 91));
        assert!(one < two);
        assert_eq!(one.shard(), Some(shard));
        assert_eq!(one.as_str().len(), 2 + 1 + 26);
        assert_eq!(JobId::try_new(one.as_str()), Ok(one.clone()));
        assert!(JobId::try_chosen(one.as_str()).is_err());
    }
}

//! Names and proofs: topics, job ids, shard names, lease tokens and receipts. Parsed and checked
//! here only, so that the rest of the system never sees a malformed one.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::limit;

/// A topic: `[A-Za-z0-9][A-Za-z0-9._:-]{0,127}`; dots form a hierarchy for globs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName(Arc<str>);

/// A job's id within its topic; see [`JobId::try_chosen`] and [`JobId::server_made`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Arc<str>);

/// A shard's name, `[a-z0-9]{1,8}`: written on the shard at first contact and never reused. So short that it
/// is held in place: every receipt and every id of the server's own names one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardName {
    /// Zeros behind the name.
    bytes: [u8; limit::SHARD_NAME_BYTES_MAX],
    length: u8,
}

/// `(topic, id)`: the identity of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// The topic.
    pub topic: TopicName,
    /// The id within it.
    pub id: JobId,
}

/// Random 64-bit proof of one lease. All tokens of one claim share their upper half, the claim's
/// nonce, so that a claim whose reply was lost can be undone as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// What a worker settles with: proof of one lease and the way back to it. It carries its shard, so
/// no ring change misroutes it, and its stream, so credit returns to the right one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The shard on which the job lies.
    pub shard: ShardName,
    /// Nonce of the replica whose stream got the job.
    pub owner: u32,
    /// That stream, unique within the replica's life.
    pub stream: u32,
    /// The lease's token.
    pub token: Token,
    /// The job.
    pub key: JobKey,
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
const ID_CHARS: &str = "letters, digits and . _ : @ -";
const SHARD_CHARS: &str = "lowercase letters and digits";
const RECEIPT_VERSION: u8 = 1;
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
    fn held(name: &str) -> ShardName {
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

fn check(
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

// === impl Token ===

impl Token {
    /// The token of one lease: the claim's nonce above, entropy below.
    #[must_use]
    pub fn new(nonce: u32, entropy: u32) -> Token {
        Token(u64::from(nonce) << 32 | u64::from(entropy))
    }

    /// The nonce of the claim that made it.
    #[must_use]
    pub fn nonce(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or(0)
    }
}

// === impl Receipt ===

impl Receipt {
    /// URL-safe text without padding, at most 512 characters, usually about 90.
    #[must_use]
    pub fn encode(&self) -> String {
        let (shard, topic) = (self.shard.as_str(), self.key.topic.as_str());
        let id = self.key.id.as_str();
        let mut bytes = Vec::with_capacity(19 + shard.len() + topic.len() + id.len());
        bytes.push(RECEIPT_VERSION);
        put_short(&mut bytes, shard);
        bytes.extend_from_slice(&self.owner.to_be_bytes());
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.token.0.to_be_bytes());
        put_short(&mut bytes, topic);
        bytes.extend_from_slice(id.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// The receipt in `text`; `None` when it is not one. Names inside are checked like a client's.
    #[must_use]
    pub fn decode(text: &str) -> Option<Receipt> {
        if text.len() > limit::RECEIPT_CHARS_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let rest = bytes.strip_prefix(&[RECEIPT_VERSION])?;
        let (shard, rest) = take_short(rest)?;
        let (owner, rest) = rest.split_first_chunk::<4>()?;
        let (stream, rest) = rest.split_first_chunk::<4>()?;
        let (token, rest) = rest.split_first_chunk::<8>()?;
        let (topic, id) = take_short(rest)?;
        let id = std::str::from_utf8(id).ok()?;
        Some(Receipt {
            shard: ShardName::try_new(shard).ok()?,
            owner: u32::from_be_bytes(*owner),
            stream: u32::from_be_bytes(*stream),
            token: Token(u64::from_be_bytes(*token)),
            key: JobKey { topic: TopicName::try_new(topic).ok()?, id: JobId::try_new(id).ok()? },
        })
    }
}

/// A text of at most 255 bytes behind its length.
fn put_short(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    bytes.extend_from_slice(text.as_bytes());
}

fn take_short(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(len))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

// === Display ===

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for JobId {
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

/// `topics/{topic}/jobs/{id}`: the name that errors carry (AIP-122).
impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "topics/{}/jobs/{}", self.topic, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(topic: &str, id: &str) -> Receipt {
        Receipt {
            shard: ShardName::try_new("s0").unwrap(),
            owner: 7,
            stream: 9,
            token: Token::new(0xdead_beef, 42),
            key: JobKey {
                topic: TopicName::try_new(topic).unwrap(),
                id: JobId::try_new(id).unwrap(),
            },
        }
    }

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
    fn ids_are_checked() {
        for good in ["a", "user@example.org", "a:b.c-d_e", &"i".repeat(128)] {
            assert!(JobId::try_new(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a/b", "s0~short", "~", &"i".repeat(129)] {
            assert!(JobId::try_new(bad).is_err(), "{bad}");
        }
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

    #[test]
    fn receipts_survive_their_round_trip_at_every_size() {
        for (topic, id) in [("a", "b"), (&*"t".repeat(128), &*"i".repeat(128))] {
            let receipt = receipt(topic, id);
            let text = receipt.encode();
            assert!(text.len() <= limit::RECEIPT_CHARS_MAX, "{}", text.len());
            assert_eq!(Receipt::decode(&text), Some(receipt));
        }
    }

    #[test]
    fn every_truncation_of_a_receipt_is_refused_or_another_receipt() {
        let original = receipt("emails", "order-1");
        let text = original.encode();
        for end in 0..text.len() {
            assert_ne!(Receipt::decode(&text[..end]), Some(original.clone()), "{end}");
        }
        assert_eq!(Receipt::decode("not a receipt"), None);
    }
}

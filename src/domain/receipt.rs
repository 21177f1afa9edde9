//! Proof of a lease: the token, and the receipt that takes it to a worker and back.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use super::id::{JobId, JobKey};
use super::limit;
use super::name::{ShardName, TopicName};

/// Proof of one lease, in 64 bits. All tokens of one claim share their upper half, the claim's random nonce, so that a
/// claim whose reply was lost can be undone as a whole. The lower half has random bits and the place of the lease in
/// the claim: a stream finds its leases by their tokens, so no two may be equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A receipt, with which a worker settles a lease. It contains the shard, so that a change of the ring does not
/// misroute it, and the stream, so that the credit of the right one is freed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Shard that stores the job.
    pub shard: ShardName,
    /// Nonce of the replica whose stream received the job.
    pub owner: u32,
    /// Number of that stream, unique within the replica's life.
    pub stream: u32,
    /// Token of the lease.
    pub token: Token,
    /// Topic and id of the job.
    pub key: JobKey,
}

const VERSION: u8 = 1;
/// Number of bits of a token for the place of its lease in the claim.
const PLACE_BITS: u32 = limit::CALL_JOBS_MAX.ilog2();
const _: () = assert!(1 << PLACE_BITS == limit::CALL_JOBS_MAX, "each job of a claim has a place");

// === impl Token ===

impl Token {
    /// Returns the tokens of one claim, as an endless iterator. The first [`limit::CALL_JOBS_MAX`] are distinct for any
    /// entropy.
    pub fn of_claim(nonce: u32, entropy: impl Iterator<Item = u32>) -> impl Iterator<Item = Token> {
        let places = (0..1 << PLACE_BITS).cycle();
        let half = |(entropy, place): (u32, u32)| u64::from(entropy << PLACE_BITS | place);
        entropy.zip(places).map(half).map(move |half| Token(u64::from(nonce) << 32 | half))
    }

    /// Returns the nonce of the claim that made the token.
    #[must_use]
    pub fn nonce(self) -> u32 {
        u32::try_from(self.0 >> 32).unwrap_or(0)
    }
}

// === impl Receipt ===

impl Receipt {
    /// Encodes the receipt as URL-safe text without padding, at most 512 characters, usually about 90.
    #[must_use]
    pub fn encode(&self) -> String {
        let (shard, topic) = (self.shard.as_str(), self.key.topic.as_str());
        let id = self.key.id.as_str();
        let mut bytes = Vec::with_capacity(19 + shard.len() + topic.len() + id.len());
        bytes.push(VERSION);
        put_short(&mut bytes, shard);
        bytes.extend_from_slice(&self.owner.to_be_bytes());
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.token.0.to_be_bytes());
        put_short(&mut bytes, topic);
        bytes.extend_from_slice(id.as_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Decodes the receipt in `text`; `None` if it is not one. Names in it are checked like a client's.
    #[must_use]
    pub fn decode(text: &str) -> Option<Receipt> {
        if text.len() > limit::RECEIPT_CHARS_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let rest = bytes.strip_prefix(&[VERSION])?;
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

/// Appends the length of a text of at most 255 bytes, then the text.
fn put_short(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
    bytes.extend_from_slice(text.as_bytes());
}

fn take_short(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(len))?;
    Some((std::str::from_utf8(text).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(topic: &str, id: &str) -> Receipt {
        Receipt {
            shard: ShardName::try_new("s0").unwrap(),
            owner: 7,
            stream: 9,
            token: Token(0xdead_beef_0000_002a),
            key: JobKey {
                topic: TopicName::try_new(topic).unwrap(),
                id: JobId::try_new(id).unwrap(),
            },
        }
    }

    #[test]
    fn tokens_of_a_claim_differ_whatever_the_entropy() {
        let alike = Token::of_claim(7, std::iter::repeat(u32::MAX)).take(limit::CALL_JOBS_MAX);
        let tokens: std::collections::BTreeSet<_> = alike.collect();
        assert_eq!(tokens.len(), limit::CALL_JOBS_MAX);
        assert!(tokens.iter().all(|token| token.nonce() == 7));
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

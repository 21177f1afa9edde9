//! Proof of a lease: the token, and the receipt that takes it to a worker and back.
//!
//! A worker knows most of a token of another worker: all tokens of one claim share their upper half, and a claim serves
//! all streams. So a receipt ends with a code (SipHash-2-4) over all of it, by a key that only the shard and its servers
//! have. Servers compare it before they ask the store: a guess has to meet 64 bits, and costs the store nothing.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use siphasher::sip::SipHasher24;

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

/// Secret key of a shard, by which its servers recognize receipts that one of them has made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReceiptKey(u128);

/// Result of the comparison of a receipt with the key of its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptProof {
    /// A server of the shard has made it.
    Genuine,
    /// No server of the shard has made it.
    Forged,
    /// The key is not known: the shard was not reached yet.
    Unknown,
}

const VERSION: u8 = 1;
/// Bytes of the code at the end of a receipt.
const CODE_BYTES: usize = 8;
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
    /// Encodes the receipt as URL-safe text without padding, at most 512 characters, usually about 100. Without the key
    /// of its shard it settles nothing; the shard of a job that was delivered has one.
    #[must_use]
    pub fn encode(&self, key: Option<ReceiptKey>) -> String {
        let (shard, topic) = (self.shard.as_str(), self.key.topic.as_str());
        let id = self.key.id.as_str();
        let mut bytes = Vec::with_capacity(19 + CODE_BYTES + shard.len() + topic.len() + id.len());
        bytes.push(VERSION);
        put_short(&mut bytes, shard);
        bytes.extend_from_slice(&self.owner.to_be_bytes());
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.token.0.to_be_bytes());
        put_short(&mut bytes, topic);
        bytes.extend_from_slice(id.as_bytes());
        let code = key.map_or(0, |key| key.code(&bytes));
        bytes.extend_from_slice(&code.to_be_bytes());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Decodes the receipt in `text`, and compares it with the key of its shard; `None` if it is not a receipt. Names in
    /// it are checked like a client's, unless it is genuine.
    #[must_use]
    pub fn decode(
        text: &str,
        key_of: impl FnOnce(&ShardName) -> Option<ReceiptKey>,
    ) -> Option<(Receipt, ReceiptProof)> {
        if text.len() > limit::RECEIPT_CHARS_MAX {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (signed, code) = bytes.split_last_chunk::<CODE_BYTES>()?;
        let rest = signed.strip_prefix(&[VERSION])?;
        let (shard, rest) = take_short(rest)?;
        let shard = ShardName::try_new(shard).ok()?;
        let proof = match key_of(&shard) {
            // Of one word: a comparison takes the same time wherever the codes differ.
            Some(key) if key.code(signed) == u64::from_be_bytes(*code) => ReceiptProof::Genuine,
            Some(_) => ReceiptProof::Forged,
            None => ReceiptProof::Unknown,
        };
        let (owner, rest) = rest.split_first_chunk::<4>()?;
        let (stream, rest) = rest.split_first_chunk::<4>()?;
        let (token, rest) = rest.split_first_chunk::<8>()?;
        let (topic, id) = take_short(rest)?;
        let id = std::str::from_utf8(id).ok()?;
        let key = match proof {
            ReceiptProof::Genuine => {
                JobKey { topic: TopicName::stored(topic), id: JobId::stored(id) }
            }
            _ => JobKey { topic: TopicName::try_new(topic).ok()?, id: JobId::try_new(id).ok()? },
        };
        let receipt = Receipt {
            shard,
            owner: u32::from_be_bytes(*owner),
            stream: u32::from_be_bytes(*stream),
            token: Token(u64::from_be_bytes(*token)),
            key,
        };
        Some((receipt, proof))
    }
}

// === impl ReceiptKey ===

impl ReceiptKey {
    /// Creates a key of these 128 bits, which must be random.
    #[must_use]
    pub const fn new(bits: u128) -> ReceiptKey {
        ReceiptKey(bits)
    }

    /// Returns the bits, for the store.
    #[must_use]
    pub(crate) const fn bits(self) -> u128 {
        self.0
    }

    /// Returns the code of a receipt without its code.
    fn code(self, signed: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0.to_be_bytes()).hash(signed)
    }
}

impl fmt::Debug for ReceiptKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReceiptKey")
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

    const KEY: ReceiptKey = ReceiptKey::new(7);

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
            let text = receipt.encode(Some(KEY));
            assert!(text.len() <= limit::RECEIPT_CHARS_MAX, "{}", text.len());
            let decode = |key| Receipt::decode(&text, |_| key).unwrap();
            assert_eq!(decode(Some(KEY)), (receipt.clone(), ReceiptProof::Genuine));
            assert_eq!(decode(Some(ReceiptKey::new(8))), (receipt.clone(), ReceiptProof::Forged));
            assert_eq!(decode(None), (receipt, ReceiptProof::Unknown));
        }
    }

    /// Everything but the code is known to another worker, so each bit of a receipt has to be in the code.
    #[test]
    fn a_receipt_with_any_other_bit_is_forged_or_none() {
        let text = receipt("emails", "order-1").encode(Some(KEY));
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for bit in 0..8 * bytes.len() {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            let decoded = Receipt::decode(&URL_SAFE_NO_PAD.encode(other), |_| Some(KEY));
            assert!(decoded.is_none_or(|(_, proof)| proof == ReceiptProof::Forged), "{bit}");
        }
        for end in 0..text.len() {
            let decoded = Receipt::decode(&text[..end], |_| Some(KEY));
            assert!(decoded.is_none_or(|(_, proof)| proof == ReceiptProof::Forged), "{end}");
        }
        assert_eq!(Receipt::decode("not a receipt", |_| Some(KEY)), None);
    }

    /// The code is SipHash-2-4 with a key of 128 bits: the first test vector of its authors.
    #[test]
    fn the_code_is_that_of_the_standard() {
        let key = ReceiptKey::new(0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);
        assert_eq!(key.code(&[]), 0x726f_db47_dd0e_0e31);
        assert_eq!(format!("{key:?}"), "ReceiptKey");
    }
}

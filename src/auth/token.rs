//! Static bearer tokens. A server keeps only their hashes: a token has 256 random bits, so its plain SHA-256 cannot be
//! reversed, and a slow hash would only slow down every call.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// First characters of a token, by which scanners for secrets recognize one.
pub(super) const PREFIX: &str = "rq_";
/// Number of random bytes of a token.
const RANDOM_BYTES: usize = 32;
/// First characters of a hash in a file.
const HASH_PREFIX: &str = "sha256:";

/// SHA-256 of a token.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash([u8; 32]);

// === impl TokenHash ===

impl TokenHash {
    /// Returns the hash of a token.
    #[must_use]
    pub fn of(token: &str) -> TokenHash {
        TokenHash(Sha256::digest(token.as_bytes()).into())
    }

    /// Reads `sha256:` and 64 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<TokenHash> {
        let digits = text.strip_prefix(HASH_PREFIX)?.as_bytes();
        let mut hash = [0; 32];
        if digits.len() != 2 * hash.len() {
            return None;
        }
        for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
            let digit = |index: usize| char::from(pair[index]).to_digit(16);
            *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
        }
        Some(TokenHash(hash))
    }
}

/// Formats the hash as in a file.
impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HASH_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash(..)")
    }
}

/// Returns a new token: `rq_` and 32 random bytes in base64url.
#[must_use]
pub fn generate() -> String {
    let random: [u8; RANDOM_BYTES] = rand::random();
    format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_read_as_they_are_written() {
        // FIPS 180-2, appendix B.1.
        let hash = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(TokenHash::of("abc").to_string(), hash);
        assert_eq!(TokenHash::parse(hash), Some(TokenHash::of("abc")));
        assert_eq!(
            TokenHash::parse(&hash.to_uppercase().replace("SHA", "sha")),
            TokenHash::parse(hash)
        );
        for bad in ["", "abc", &hash[7..], &hash[..70], &format!("{hash}0"), "sha256:é"] {
            assert_eq!(TokenHash::parse(bad), None, "{bad}");
        }
        assert!(!format!("{:?}", TokenHash::of("abc")).contains("ba78"));
    }

    #[test]
    fn tokens_differ_and_fit_into_a_header() {
        let (a, b) = (generate(), generate());
        assert_ne!(a, b);
        assert_eq!(a.len(), 46);
        assert!(a.starts_with("rq_") && a.bytes().all(|b| b.is_ascii_graphic()));
    }
}

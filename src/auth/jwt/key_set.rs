//! Public keys of an issuer: a JSON Web Key Set (RFC 7517).

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Maximum number of keys of a set.
const KEYS_MAX: usize = 256;
/// Algorithms of RSA keys.
const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
/// Sizes in bytes of RSA keys that are accepted: 2,048 to 8,192 bits.
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

/// Public keys of an issuer, at least one.
#[derive(Clone, Debug)]
pub struct KeySet {
    keys: Vec<PublicKey>,
    /// Number of entries that are no usable public keys.
    unusable: usize,
    /// SHA-256 of the text that they were read from, to compare sets.
    digest: [u8; 32],
}

/// Public key for signatures.
#[derive(Clone, Debug)]
struct PublicKey {
    kid: Option<String>,
    /// Algorithms that it may be used with.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
    id: KeyId,
}

/// Identity of a public key: SHA-256 of its parameters, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::auth) struct KeyId([u8; 32]);

/// Reason why no key fits a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoKey {
    /// No key has this name.
    Unknown,
    /// The token names none, and there are several.
    NotNamed,
    /// The keys of this name are for other algorithms.
    OtherAlgorithm,
}

/// JSON Web Key Set as it is written. Each entry is read for itself, because issuers may add kinds of keys.
#[derive(Deserialize)]
struct WrittenSet {
    keys: Vec<Value>,
}

// === impl KeySet ===

impl KeySet {
    /// Reads a set. Entries that are no public keys for signatures are left out.
    ///
    /// # Errors
    /// A text, if it is no set, or has no usable key.
    pub fn parse(text: &[u8]) -> Result<KeySet, String> {
        let set: WrittenSet = serde_json::from_slice(text)
            .map_err(|_| "is not a JSON Web Key Set, {\"keys\": [...]}".to_owned())?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("has more than {KEYS_MAX} keys"));
        }
        let entries = set.keys.len();
        let keys: Vec<_> = set.keys.into_iter().filter_map(PublicKey::read).collect();
        if keys.is_empty() {
            let text = "has no usable key: RSA of 2048 to 8192 bits, EC on P-256 or P-384, or OKP on Ed25519, for \
                        signatures";
            return Err(text.to_owned());
        }
        Ok(KeySet { unusable: entries - keys.len(), keys, digest: Sha256::digest(text).into() })
    }

    /// Returns the number of keys.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of entries that are no usable public keys.
    pub(super) fn unusable(&self) -> usize {
        self.unusable
    }

    /// Returns whether it has a key.
    pub(in crate::auth) fn has(&self, id: KeyId) -> bool {
        self.keys.iter().any(|key| key.id == id)
    }

    /// Returns the keys that may have signed a token with this header: mostly one; several, if they share a name.
    pub(super) fn find(
        &self,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Vec<(&DecodingKey, KeyId)>, NoKey> {
        let named: Vec<&PublicKey> = match (&self.keys[..], kid) {
            ([only], None) => vec![only],
            ([only], Some(_)) if only.kid.is_none() => vec![only],
            (_, None) => return Err(NoKey::NotNamed),
            (keys, kid) => keys.iter().filter(|key| key.kid.as_deref() == kid).collect(),
        };
        if named.is_empty() {
            return Err(NoKey::Unknown);
        }
        let fitting = named.into_iter().filter(|key| key.algorithms.contains(&algorithm));
        let fitting: Vec<_> = fitting.map(|key| (&key.key, key.id)).collect();
        if fitting.is_empty() { Err(NoKey::OtherAlgorithm) } else { Ok(fitting) }
    }
}

impl PartialEq for KeySet {
    fn eq(&self, other: &KeySet) -> bool {
        self.digest == other.digest
    }
}

impl Eq for KeySet {}

// === impl PublicKey ===

impl PublicKey {
    /// Reads an entry; `None`: it is no public key for signatures of an algorithm that this server knows.
    fn read(entry: Value) -> Option<PublicKey> {
        let jwk: Jwk = serde_json::from_value(entry).ok()?;
        let is_for_signatures =
            jwk.common.public_key_use.as_ref().is_none_or(|of| *of == PublicKeyUse::Signature)
                && jwk
                    .common
                    .key_operations
                    .as_ref()
                    .is_none_or(|operations| operations.contains(&KeyOperations::Verify));
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        let has_bytes = |count| key.try_get_as_bytes().is_ok_and(|bytes| bytes.len() == count);
        let mut algorithms = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) if has_rsa_size(&key) => RSA.to_vec(),
            // 0x04 and the two coordinates.
            AlgorithmParameters::EllipticCurve(ec) => match ec.curve {
                EllipticCurve::P256 if has_bytes(65) => vec![Algorithm::ES256],
                EllipticCurve::P384 if has_bytes(97) => vec![Algorithm::ES384],
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(okp) => match okp.curve {
                EllipticCurve::Ed25519 if has_bytes(32) => vec![Algorithm::EdDSA],
                _ => return None,
            },
            // A secret, or a kind of key that is not known.
            _ => return None,
        };
        if let Some(only) = jwk.common.key_algorithm {
            algorithms
                .retain(|algorithm| Algorithm::try_from(only).is_ok_and(|of| of == *algorithm));
        }
        let is_usable = is_for_signatures && !algorithms.is_empty();
        let id = KeyId(Sha256::digest(serde_json::to_vec(&jwk.algorithm).ok()?).into());
        is_usable.then_some(PublicKey { kid: jwk.common.key_id, algorithms, key, id })
    }
}

fn has_rsa_size(key: &DecodingKey) -> bool {
    use super::ring_verifier::modulus;
    modulus(key).is_some_and(|modulus| RSA_BYTES.contains(&modulus.len()))
}

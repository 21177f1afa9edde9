//! An issuer of JSON Web Tokens, and what its tokens must have.

use std::time::Duration;

use jsonwebtoken::Algorithm;

use super::error::{JwtError, quote};
use super::jwks_url::JwksUrl;
use super::key_set::KeySet;

/// Algorithms that an issuer can be allowed, by name. Those with a shared secret (HS*) and `none` are not among them.
pub const ALGORITHMS: [(&str, Algorithm); 9] = [
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];
/// Algorithms of an issuer without a list.
pub const ALGORITHMS_DEFAULT: [Algorithm; 2] = [Algorithm::RS256, Algorithm::ES256];
/// Leeway of an issuer without one.
pub const LEEWAY_DEFAULT: Duration = Duration::from_secs(30);
/// Maximum leeway.
pub const LEEWAY_MAX: Duration = Duration::from_secs(60);

/// Issuer of JSON Web Tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// Name in files, errors and logs.
    pub name: String,
    /// Claim `iss` of its tokens.
    pub issuer: String,
    /// Audiences, of which a token needs one in its claim `aud`.
    pub audiences: Vec<String>,
    /// Algorithms that it may sign with.
    pub algorithms: Vec<Algorithm>,
    /// Time by which its clock and this server's may differ.
    pub leeway: Duration,
    /// Source of its public keys.
    pub keys: KeySource,
}

/// Source of the public keys of an issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file, with its present content. It is followed together with the identities.
    File(KeySet),
    /// A URL, which is fetched in the background.
    Url(JwksUrl),
}

// === impl Issuer ===

impl Issuer {
    /// Returns whether tokens that the other issuer's rules accept fulfil the rules of this one. Keys are not compared.
    #[must_use]
    pub fn has_rules_of(&self, other: &Issuer) -> bool {
        let rules = |issuer: &Issuer| {
            let Issuer { name, issuer, audiences, algorithms, leeway, keys: _ } = issuer.clone();
            (name, issuer, audiences, algorithms, leeway)
        };
        rules(self) == rules(other)
    }

    /// Returns the algorithm of this name, if the issuer may sign with it.
    ///
    /// # Errors
    /// [`JwtError::AlgorithmNotAllowed`], if it may not, or if there is no such algorithm.
    pub(super) fn algorithm(&self, name: &str) -> Result<Algorithm, JwtError> {
        let mut allowed = ALGORITHMS.iter().filter(|(_, known)| self.algorithms.contains(known));
        if let Some((_, algorithm)) = allowed.clone().find(|(known, _)| *known == name) {
            return Ok(*algorithm);
        }
        let mut names = allowed.next().map_or(String::new(), |(name, _)| (*name).to_owned());
        allowed.for_each(|(name, _)| names = format!("{names}, {name}"));
        let (issuer, algorithm) = (self.name.clone(), quote(name));
        Err(JwtError::AlgorithmNotAllowed { issuer, algorithm, allowed: names })
    }
}

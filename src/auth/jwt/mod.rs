//! JSON Web Tokens (RFC 7519) as proofs of identities.
//!
//! - `issuer`: an issuer, and what its tokens must have; `issuer_file`: issuers as text, in TOML
//! - `key_set`: the public keys of an issuer; `ring_verifier`: signatures
//! - `unverified`: a token until its signature and its claims are checked
//! - `jwks_url`: where keys are fetched; `jwks_fetch`: one fetch; `fetched_keys`: keys that are kept up to date
//! - `token_cache`: tokens that were verified before
//! - `error`: reasons why a token is refused
//!
//! A token chooses its issuer by its claim `iss`, and nothing else of it is used before its signature is verified,
//! except the algorithm and the name of the key, which both have to be the issuer's. Keys never come from a token.

pub mod error;
pub mod fetched_keys;
pub mod issuer;
pub mod issuer_file;
pub mod jwks_fetch;
pub mod jwks_url;
pub mod key_set;
pub(super) mod ring_verifier;
#[cfg(test)]
pub(super) mod tests;
pub(super) mod token_cache;
pub(super) mod unverified;

pub use error::JwtError;
pub use issuer::Issuer;

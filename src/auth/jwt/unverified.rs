//! A JSON Web Token until its signature and its claims are checked.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::domain::Time;

use super::error::{JwtError, quote};
use super::issuer::Issuer;
use super::key_set::{KeyId, KeySet, NoKey};
use super::ring_verifier;

/// Number of dots in a JSON Web Token.
const DOTS: usize = 2;
/// Claims that a token must have.
const REQUIRED: [&str; 4] = ["exp", "iss", "aud", "sub"];

/// Token of which nothing is proved yet.
#[derive(Debug)]
pub(in crate::auth) struct UnverifiedToken<'a> {
    token: &'a str,
    algorithm: String,
    kid: Option<String>,
    iss: String,
}

/// Claims of a token that an issuer has signed, for one of its audiences, at a time at which it is valid.
#[derive(Debug)]
pub(in crate::auth) struct ProvedClaims {
    /// Claim `sub`.
    pub(in crate::auth) subject: String,
    /// Time from which on the token is refused: that of its claim `exp`, and the leeway.
    pub(in crate::auth) ends: Time,
    /// Key that has signed it.
    pub(in crate::auth) key: KeyId,
}

/// Parts of the header that choose how a token is verified.
#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default, deserialize_with = "present")]
    crit: bool,
}

/// The claim that chooses the issuer.
#[derive(Deserialize)]
struct IssuerClaim {
    #[serde(default)]
    iss: Option<String>,
}

/// Claims that are used when the signature is verified. Times are seconds since the Unix epoch, with fractions.
#[derive(Deserialize)]
struct Claims {
    #[serde(default)]
    sub: Option<String>,
    #[serde(default)]
    exp: Option<f64>,
    #[serde(default)]
    nbf: Option<f64>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// Returns whether a bearer token has the form of a JSON Web Token.
pub(in crate::auth) fn is_jwt(token: &str) -> bool {
    token.bytes().filter(|byte| *byte == b'.').count() == DOTS
}

// === impl UnverifiedToken ===

impl UnverifiedToken<'_> {
    /// Reads the parts of a token that choose how it is verified.
    pub(in crate::auth) fn read(token: &str) -> Result<UnverifiedToken<'_>, JwtError> {
        let mut parts = token.split('.');
        let (Some(header), Some(claims)) = (parts.next(), parts.next()) else {
            return Err(JwtError::Malformed("form"));
        };
        let header: Header = decode(header).ok_or(JwtError::Malformed("header"))?;
        if header.crit {
            return Err(JwtError::CriticalHeader);
        }
        let claims: IssuerClaim = decode(claims).ok_or(JwtError::Malformed("list of claims"))?;
        let iss = claims.iss.ok_or_else(|| JwtError::MissingClaim("iss".to_owned()))?;
        Ok(UnverifiedToken { token, algorithm: header.alg, kid: header.kid, iss })
    }

    /// Returns the claim `iss`, by which the issuer is chosen.
    pub(in crate::auth) fn iss(&self) -> &str {
        &self.iss
    }

    /// Returns the error for a claim `iss` that no issuer has.
    pub(in crate::auth) fn unknown_issuer(&self) -> JwtError {
        JwtError::UnknownIssuer { iss: quote(&self.iss) }
    }

    /// Verifies the token by the rules and the present keys of the issuer. A key that is not among them may be a new
    /// one if `may_be_outdated`, which is called then, returns true.
    pub(in crate::auth) fn verify(
        &self,
        issuer: &Issuer,
        keys: &KeySet,
        may_be_outdated: impl FnOnce() -> bool,
        now: Time,
    ) -> Result<ProvedClaims, JwtError> {
        let algorithm = issuer.algorithm(&self.algorithm)?;
        let name = || issuer.name.clone();
        let keys = keys.find(self.kid.as_deref(), algorithm).map_err(|no_key| match no_key {
            NoKey::OtherAlgorithm => JwtError::WrongKeyType { issuer: name() },
            NoKey::NotNamed => JwtError::NoKeyNamed { issuer: name() },
            NoKey::Unknown if may_be_outdated() => JwtError::KeysOutdated { issuer: name() },
            NoKey::Unknown => {
                let kid = quote(self.kid.as_deref().unwrap_or_default());
                JwtError::UnknownKey { issuer: name(), kid }
            }
        })?;
        let mut result = Err(JwtError::WrongSignature { issuer: name() });
        for (key, id) in keys {
            result = self.verify_by(issuer, algorithm, key).map(|claims| (claims, id));
            if !matches!(result, Err(JwtError::WrongSignature { .. })) {
                break;
            }
        }
        let (claims, key) = result?;
        prove(claims, key, issuer.leeway, now)
    }

    /// Verifies the signature by one key, and all claims but the times.
    fn verify_by(
        &self,
        issuer: &Issuer,
        algorithm: Algorithm,
        key: &DecodingKey,
    ) -> Result<Claims, JwtError> {
        ring_verifier::install();
        let mut validation = Validation::new(algorithm);
        validation.set_audience(&issuer.audiences);
        validation.set_issuer(&[&issuer.issuer]);
        validation.set_required_spec_claims(&REQUIRED);
        // Times are compared with the clock of this server, by `prove`.
        validation.validate_exp = false;
        let verified = jsonwebtoken::decode::<Claims>(self.token, key, &validation);
        verified.map(|data| data.claims).map_err(|error| self.refusal(issuer, &error))
    }

    fn refusal(&self, issuer: &Issuer, error: &Error) -> JwtError {
        let name = || issuer.name.clone();
        match error.kind() {
            ErrorKind::InvalidSignature => JwtError::WrongSignature { issuer: name() },
            ErrorKind::InvalidAlgorithm | ErrorKind::InvalidKeyFormat => {
                JwtError::WrongKeyType { issuer: name() }
            }
            ErrorKind::InvalidIssuer => self.unknown_issuer(),
            ErrorKind::InvalidAudience => {
                let wanted = issuer.audiences.iter().map(|audience| format!("{audience:?}"));
                JwtError::WrongAudience { wanted: wanted.collect::<Vec<_>>().join(" or ") }
            }
            ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => {
                JwtError::MissingClaim(claim.clone())
            }
            _ => JwtError::Malformed("content"),
        }
    }
}

/// Checks the times of verified claims.
fn prove(
    claims: Claims,
    key: KeyId,
    leeway: Duration,
    now: Time,
) -> Result<ProvedClaims, JwtError> {
    let missing = |claim: &str| JwtError::MissingClaim(claim.to_owned());
    let expires = to_time(claims.exp.ok_or_else(|| missing("exp"))?);
    let ends = expires.plus(leeway);
    if now >= ends {
        return Err(JwtError::Expired { by: whole_seconds(now.since(expires)) });
    }
    if let Some(begins) = claims.nbf.map(to_time)
        && now.plus(leeway) < begins
    {
        return Err(JwtError::NotYetValid { by: whole_seconds(begins.since(now)) });
    }
    Ok(ProvedClaims { subject: claims.sub.ok_or_else(|| missing("sub"))?, ends, key })
}

/// Decodes a part, which has to be a JSON object.
fn decode<T: DeserializeOwned>(part: &str) -> Option<T> {
    let json = URL_SAFE_NO_PAD.decode(part).ok()?;
    let is_object = json.trim_ascii_start().starts_with(b"{");
    is_object.then(|| serde_json::from_slice(&json).ok()).flatten()
}

/// Converts seconds since the Unix epoch; times beyond the range of [`Time`] become its first or last one.
#[expect(clippy::cast_possible_truncation, reason = "a cast to an integer saturates")]
fn to_time(seconds: f64) -> Time {
    Time((seconds * 1e6) as i64)
}

fn whole_seconds(duration: Duration) -> Duration {
    Duration::from_secs(duration.as_secs())
}

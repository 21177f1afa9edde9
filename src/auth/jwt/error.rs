//! Reasons why a JSON Web Token is refused. None contains the token or its signature; what is quoted of a token is
//! escaped and short.

use std::time::Duration;

/// Maximum number of characters that are quoted of a token.
const QUOTE_MAX: usize = 128;

/// Reason why a JSON Web Token is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwtError {
    /// The token has another form.
    #[error(
        "the JSON Web Token cannot be read: its {0} is malformed; request a new one from its issuer"
    )]
    Malformed(&'static str),
    /// The token asks for extensions of the standard.
    #[error(
        "the JSON Web Token has a header `crit`, which this server does not support; request one without it"
    )]
    CriticalHeader,
    /// A claim is missing, or has the wrong type.
    #[error(
        "the JSON Web Token has no valid claim `{0}`, which is required; request one that has it"
    )]
    MissingClaim(String),
    /// No issuer has this claim `iss`.
    #[error(
        "no configured issuer has the `iss` {iss} of the JSON Web Token; use a token of another issuer, or add the issuer"
    )]
    UnknownIssuer {
        /// Claim of the token, quoted.
        iss: String,
    },
    /// The issuer does not sign with this algorithm.
    #[error(
        "the algorithm {algorithm} of the JSON Web Token is not allowed for the issuer {issuer}; allowed: {allowed}"
    )]
    AlgorithmNotAllowed {
        /// Name of the issuer.
        issuer: String,
        /// Header `alg` of the token, quoted.
        algorithm: String,
        /// Names of the algorithms that are allowed.
        allowed: String,
    },
    /// The issuer has no key of this name.
    #[error(
        "the issuer {issuer} has no key with the `kid` {kid} of the JSON Web Token; request a new token"
    )]
    UnknownKey {
        /// Name of the issuer.
        issuer: String,
        /// Header `kid` of the token, quoted.
        kid: String,
    },
    /// The token names no key, and the issuer has several.
    #[error(
        "the JSON Web Token has no `kid`, and the issuer {issuer} has several keys; request a token that names its key"
    )]
    NoKeyNamed {
        /// Name of the issuer.
        issuer: String,
    },
    /// The key that the token names is for other algorithms.
    #[error(
        "the algorithm of the JSON Web Token does not fit the key of the issuer {issuer} that it names; request a new token"
    )]
    WrongKeyType {
        /// Name of the issuer.
        issuer: String,
    },
    /// The signature is not that of the issuer's key.
    #[error(
        "the signature of the JSON Web Token is not that of the issuer {issuer}; request a new token"
    )]
    WrongSignature {
        /// Name of the issuer.
        issuer: String,
    },
    /// The token is for others.
    #[error("the JSON Web Token is for another audience; request one for the audience {wanted}")]
    WrongAudience {
        /// Audiences of which it needs one.
        wanted: String,
    },
    /// The token has expired.
    #[error("the JSON Web Token expired {} ago; request a new one", humantime::format_duration(*.by))]
    Expired {
        /// Time since then, in whole seconds.
        by: Duration,
    },
    /// The token is valid later.
    #[error("the JSON Web Token becomes valid in {}; wait, or correct the clocks", humantime::format_duration(*.by))]
    NotYetValid {
        /// Time until then, in whole seconds.
        by: Duration,
    },
    /// No identity has this subject.
    #[error(
        "no identity has the subject {subject} of the issuer {issuer}; add it to the `jwt` of one"
    )]
    UnknownSubject {
        /// Name of the issuer.
        issuer: String,
        /// Claim `sub`, quoted.
        subject: String,
    },
    /// The keys were never fetched, so that nothing is known about the token.
    #[error(
        "the keys of the issuer {issuer} could not be fetched, so its tokens cannot be checked; retry after the delay \
         in RetryInfo; the log of the server has the cause"
    )]
    KeysNotFetched {
        /// Name of the issuer.
        issuer: String,
    },
    /// The key may be a new one, and the keys are fetched again.
    #[error(
        "the issuer {issuer} had no key with the `kid` of the JSON Web Token when its keys were last fetched, and they \
         are being fetched again; retry after the delay in RetryInfo"
    )]
    KeysOutdated {
        /// Name of the issuer.
        issuer: String,
    },
}

// === impl JwtError ===

impl JwtError {
    /// Returns whether the same token may be accepted in a moment.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, JwtError::KeysNotFetched { .. } | JwtError::KeysOutdated { .. })
    }
}

/// Quotes a text of a token: escaped and bounded.
pub(in crate::auth) fn quote(text: &str) -> String {
    match text.char_indices().nth(QUOTE_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

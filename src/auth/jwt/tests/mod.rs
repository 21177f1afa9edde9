//! Tests of JSON Web Tokens, with keys that are made for each run.

mod attacks;
mod claims;
mod fetches;
mod files;
mod rotation;
mod signer;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::{Authenticator, IdentitySource, Unauthenticated};
use super::issuer::{ALGORITHMS_DEFAULT, KeySource, LEEWAY_DEFAULT};
use super::key_set::KeySet;
use super::*;
use crate::clock::{Clock, ManualClock};
use crate::domain::Time;
use crate::metrics::Metrics;
pub(super) use signer::{TestKey, token};

/// Second at which the clock of a test begins.
const NOW: i64 = 1_800_000_000;
/// Lifetime of a token in seconds.
const LIFE: i64 = 600;
/// Claim `iss` of the issuer `k`.
const ISS: &str = "https://issuer.example";
/// Identity `shop` of the subject `alice` of the issuer `k`, whose keys are in `jwks.json`.
const FILE: &str = "
[[issuer]]
name = 'k'
issuer = 'https://issuer.example'
audiences = ['ringq', 'ringq.example']
jwks_file = 'jwks.json'
algorithms = ['RS256', 'PS256', 'ES256', 'ES384', 'EdDSA']

[[identity]]
name = 'shop'
jwt = [{ issuer = 'k', subject = 'alice' }]
worker = ['*']
";

/// Server side of a test: files, a clock, and what recognizes callers.
struct World {
    directory: TempDir,
    clock: ManualClock,
    authenticator: Authenticator,
}

/// Returns an issuer of this name with a key that signed nothing.
pub(in crate::auth) fn issuer(name: &str) -> Issuer {
    let keys = KeySet::parse(jwks(&[TestKey::es256().jwk("a")]).as_bytes()).unwrap();
    Issuer {
        name: name.to_owned(),
        issuer: ISS.to_owned(),
        audiences: vec!["ringq".to_owned()],
        algorithms: ALGORITHMS_DEFAULT.to_vec(),
        leeway: LEEWAY_DEFAULT,
        keys: KeySource::File(keys),
    }
}

/// Returns the text of a set of keys.
fn jwks(keys: &[Value]) -> String {
    json!({ "keys": keys }).to_string()
}

/// Returns claims that are valid, with these ones changed; null removes one.
fn claims(changes: Value) -> Value {
    let mut claims = json!({
        "iss": ISS, "sub": "alice", "aud": "ringq", "exp": NOW + LIFE, "nbf": NOW, "iat": NOW,
    });
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => _ = claims.as_object_mut().unwrap().remove(name),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

/// Returns a valid token that the key signs, with these claims changed.
fn signed(key: &TestKey, kid: &str, changes: Value) -> String {
    token(key, &json!({ "alg": key.alg(), "kid": kid }), &claims(changes))
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

// === impl World ===

impl World {
    /// Creates a server with these identities and files with keys.
    fn new(identities: &str, files: &[(&str, &str)]) -> World {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            write(&directory.path().join(name), text);
        }
        write(&directory.path().join("identities.toml"), identities);
        let clock = ManualClock::new(Time(NOW * 1_000_000));
        let identities =
            IdentitySource::new(directory.path().join("identities.toml"), |_| None).read();
        let authenticator =
            Authenticator::new(identities.unwrap(), Clock::Manual(clock.clone()), &Metrics::new());
        World { directory, clock, authenticator }
    }

    /// Creates a server whose issuer `k` has these keys.
    fn with_keys(keys: &[Value]) -> World {
        World::new(FILE, &[("jwks.json", &jwks(keys))])
    }

    /// Returns the identity that a token proves on a new connection.
    fn call(&self, token: &str) -> Result<String, Unauthenticated> {
        let header = format!("Bearer {token}");
        let caller = self.authenticator.connection(None).caller(Some(header.as_bytes()));
        caller.map(|caller| caller.to_string())
    }

    /// Returns the reason why a JSON Web Token is refused.
    fn refusal(&self, token: &str) -> JwtError {
        let refused = self.call(token).unwrap_err();
        let text = refused.to_string();
        for part in token.split('.').filter(|part| part.len() > 3) {
            assert!(!text.contains(part), "a part of the token is shown: {text}");
        }
        match refused {
            Unauthenticated::Jwt(error) => error,
            other => panic!("{other:?}"),
        }
    }

    /// Reads the files again, as a change of them does.
    fn read_again(&self) {
        let path = self.directory.path().join("identities.toml");
        self.authenticator.replace(IdentitySource::new(path, |_| None).read().unwrap());
    }

    fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }
}

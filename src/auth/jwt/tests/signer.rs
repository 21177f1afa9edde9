//! Private keys of a test, and tokens that they sign.

use std::process::{Command, Stdio};
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair, RsaPublicKeyComponents,
};
use serde_json::{Value, json};

/// RSA key of 2,048 bits, which takes long to make: one for all tests. `None`: there is no openssl.
static RSA: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| {
    let arguments =
        ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-outform", "DER"];
    let openssl = Command::new("openssl").args(arguments).stdin(Stdio::null()).output();
    openssl.ok().filter(|made| made.status.success()).map(|made| made.stdout)
});

/// Private key.
pub(in crate::auth::jwt) enum TestKey {
    Rsa(RsaKeyPair, &'static dyn RsaEncoding, &'static str),
    Ec(EcdsaKeyPair, &'static str),
    Ed(Ed25519KeyPair),
}

/// Returns a token with this header and these claims, signed by the key whatever the header states.
pub(in crate::auth::jwt) fn token(key: &TestKey, header: &Value, claims: &Value) -> String {
    let message = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
    let signature = key.sign(message.as_bytes());
    format!("{message}.{}", encode(signature))
}

pub(super) fn encode(part: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(part)
}

// === impl TestKey ===

impl TestKey {
    /// Creates a key on P-256.
    pub(in crate::auth::jwt) fn es256() -> TestKey {
        TestKey::Ec(ec(&ECDSA_P256_SHA256_FIXED_SIGNING), "ES256")
    }

    /// Creates a key on P-384.
    pub(super) fn es384() -> TestKey {
        TestKey::Ec(ec(&ECDSA_P384_SHA384_FIXED_SIGNING), "ES384")
    }

    /// Creates a key on Ed25519.
    pub(super) fn ed25519() -> TestKey {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        TestKey::Ed(Ed25519KeyPair::from_pkcs8(made.as_ref()).unwrap())
    }

    /// Returns the RSA key for RS256; `None`, which is printed: there is no openssl.
    pub(super) fn rs256() -> Option<TestKey> {
        let Some(key) = &*RSA else {
            println!("skipped: there is no openssl");
            return None;
        };
        // In PKCS#8 or, by older versions, in PKCS#1.
        let key = RsaKeyPair::from_pkcs8(key).or_else(|_| RsaKeyPair::from_der(key)).unwrap();
        Some(TestKey::Rsa(key, &RSA_PKCS1_SHA256, "RS256"))
    }

    /// Returns the same key for PS256.
    pub(super) fn ps256() -> Option<TestKey> {
        let TestKey::Rsa(key, ..) = TestKey::rs256()? else { return None };
        Some(TestKey::Rsa(key, &RSA_PSS_SHA256, "PS256"))
    }

    /// Returns the name of its algorithm.
    pub(super) fn alg(&self) -> &'static str {
        match self {
            TestKey::Rsa(_, _, name) | TestKey::Ec(_, name) => name,
            TestKey::Ed(_) => "EdDSA",
        }
    }

    /// Returns the public key of this name.
    pub(in crate::auth::jwt) fn jwk(&self, kid: &str) -> Value {
        let mut jwk = self.jwk_without_kid();
        jwk["kid"] = kid.into();
        jwk
    }

    /// Returns the public key without a name.
    pub(super) fn jwk_without_kid(&self) -> Value {
        match self {
            TestKey::Rsa(key, ..) => {
                let of: RsaPublicKeyComponents<Vec<u8>> = key.public().into();
                json!({ "kty": "RSA", "use": "sig", "n": encode(of.n), "e": encode(of.e) })
            }
            TestKey::Ec(key, name) => {
                let point = &key.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                let curve = if *name == "ES256" { "P-256" } else { "P-384" };
                json!({ "kty": "EC", "crv": curve, "x": encode(x), "y": encode(y) })
            }
            TestKey::Ed(key) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": encode(key.public_key()) })
            }
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            TestKey::Rsa(key, encoding, _) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(*encoding, &random, message, &mut signature).unwrap();
                signature
            }
            TestKey::Ec(key, _) => key.sign(&random, message).unwrap().as_ref().to_vec(),
            TestKey::Ed(key) => key.sign(message).as_ref().to_vec(),
        }
    }
}

fn ec(algorithm: &'static EcdsaSigningAlgorithm) -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let made = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
    EcdsaKeyPair::from_pkcs8(algorithm, made.as_ref(), &random).unwrap()
}

//! Signatures of JSON Web Tokens, verified by ring.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaPublicKeyComponents, UnparsedPublicKey,
    VerificationAlgorithm,
};

/// Ciphers of the crate `jsonwebtoken` in this process. Nothing is signed.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: |algorithm, key| Ok(Box::new(RingVerifier::new(*algorithm, key)?)),
    key_utils: KeyUtils::new_unimplemented(),
};

/// Way in which ring verifies signatures.
#[derive(Clone, Copy)]
enum Method {
    Rsa(&'static ring::signature::RsaParameters),
    Other(&'static dyn VerificationAlgorithm),
}

/// Verifier of the signatures of one key by one algorithm.
struct RingVerifier {
    algorithm: Algorithm,
    method: Method,
    key: DecodingKey,
}

/// Makes the crate `jsonwebtoken` use ring. It takes the first that is installed, so that later calls do nothing.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
}

/// Returns the modulus of an RSA key, as ring takes it: without leading zeros.
pub(super) fn modulus(key: &DecodingKey) -> Option<&[u8]> {
    match key.kind() {
        DecodingKeyKind::RsaModulusExponent { n, .. } => Some(without_zeros(n)),
        DecodingKeyKind::SecretOrDer(_) => None,
    }
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

// === impl RingVerifier ===

impl RingVerifier {
    fn new(algorithm: Algorithm, key: &DecodingKey) -> Result<RingVerifier, Error> {
        let method = match algorithm {
            Algorithm::RS256 => Method::Rsa(&RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => Method::Rsa(&RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => Method::Rsa(&RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => Method::Rsa(&RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => Method::Rsa(&RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => Method::Rsa(&RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => Method::Other(&ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => Method::Other(&ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => Method::Other(&ED25519),
            // Those with a shared secret: a public key could be used as one.
            _ => return Err(ErrorKind::InvalidAlgorithm.into()),
        };
        if key.family() != algorithm.family() {
            return Err(ErrorKind::InvalidKeyFormat.into());
        }
        Ok(RingVerifier { algorithm, method, key: key.clone() })
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match (self.method, self.key.kind()) {
            (Method::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                let key = RsaPublicKeyComponents { n: without_zeros(n), e: without_zeros(e) };
                key.verify(parameters, message, signature)
            }
            (Method::Other(method), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(method, key).verify(message, signature)
            }
            _ => return Err(signature::Error::new()),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

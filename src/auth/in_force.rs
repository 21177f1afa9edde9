//! Identities in force, with the keys that their issuers have at the moment.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::join_all;
use tokio::sync::watch;

use crate::domain::Time;

use super::identities::Identities;
use super::identity::{Identity, JwtSubject};
use super::jwt::error::{JwtError, quote};
use super::jwt::fetched_keys::FetchedKeys;
use super::jwt::issuer::{Issuer, KeySource};
use super::jwt::jwks_url::JwksUrl;
use super::jwt::key_set::KeyId;
use super::jwt::unverified::UnverifiedToken;

/// Identities in force, and the tasks that fetch keys of issuers.
#[derive(Debug)]
pub(super) struct InForce {
    pub(super) identities: Identities,
    fetched: HashMap<JwksUrl, Arc<FetchedKeys>>,
}

/// Proof by a JSON Web Token that was verified.
#[derive(Clone, Debug)]
pub(super) struct JwtProof {
    pub(super) identity: Arc<Identity>,
    pub(super) issuer: Arc<Issuer>,
    /// Time from which on the token is refused.
    pub(super) ends: Time,
    /// Key that has signed it.
    pub(super) key: KeyId,
}

// === impl InForce ===

impl InForce {
    /// Puts identities in force in place of `former`: keys that those had fetched from the same place are kept. Starts
    /// to fetch others, which needs a runtime. `generation` rises with each change of keys.
    pub(super) fn new(
        identities: Identities,
        former: Option<&InForce>,
        generation: &Arc<watch::Sender<u64>>,
    ) -> InForce {
        let mut fetched = HashMap::new();
        for issuer in identities.issuers() {
            let KeySource::Url(url) = &issuer.keys else { continue };
            let kept = former.and_then(|former| former.fetched.get(url)).cloned();
            let start = || Arc::new(FetchedKeys::start(url.clone(), Arc::clone(generation)));
            fetched.entry(url.clone()).or_insert_with(|| kept.unwrap_or_else(start));
        }
        InForce { identities, fetched }
    }

    /// Waits until each issuer's keys were fetched once, or could not be.
    pub(super) async fn keys_tried(&self) {
        join_all(self.fetched.values().map(|keys| keys.tried())).await;
    }

    /// Returns whether a token that this key has signed by the rules of `issuer` would still be accepted. While the keys
    /// are not known it is.
    pub(super) fn still_trusts(&self, issuer: &Issuer, key: KeyId) -> bool {
        let Some(now) = self.identities.issuer_of(&issuer.issuer) else { return false };
        now.has_rules_of(issuer)
            && match &now.keys {
                KeySource::File(keys) => keys.has(key),
                KeySource::Url(url) => {
                    let keys = self.fetched.get(url).and_then(|fetched| fetched.keys());
                    keys.is_none_or(|keys| keys.has(key))
                }
            }
    }

    /// Verifies a token and returns the identity that it proves.
    pub(super) fn verify(&self, token: &str, now: Time) -> Result<JwtProof, JwtError> {
        let token = UnverifiedToken::read(token)?;
        let issuer =
            self.identities.issuer_of(token.iss()).ok_or_else(|| token.unknown_issuer())?;
        let claims = match &issuer.keys {
            KeySource::File(keys) => token.verify(issuer, keys, || false, now)?,
            KeySource::Url(url) => {
                let not_fetched = || JwtError::KeysNotFetched { issuer: issuer.name.clone() };
                let fetched = self.fetched.get(url).ok_or_else(not_fetched)?;
                let keys = fetched.keys().ok_or_else(not_fetched)?;
                token.verify(issuer, &keys, || fetched.may_be_outdated(), now)?
            }
        };
        let subject = JwtSubject { issuer: issuer.name.clone(), subject: claims.subject };
        let identity =
            self.identities.by_jwt(&subject).ok_or_else(|| JwtError::UnknownSubject {
                issuer: subject.issuer.clone(),
                subject: quote(&subject.subject),
            })?;
        let (identity, issuer) = (Arc::clone(identity), Arc::clone(issuer));
        Ok(JwtProof { identity, issuer, ends: claims.ends, key: claims.key })
    }
}

//! All identities that are known at one moment.

use std::collections::HashMap;
use std::sync::Arc;

use super::identity::{Identity, JwtSubject};
use super::quota::Quotas;
use super::token::TokenHash;

/// Identities, by what proves them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    by_name: HashMap<String, Arc<Identity>>,
    by_token: HashMap<TokenHash, Arc<Identity>>,
    by_jwt: HashMap<JwtSubject, Arc<Identity>>,
    by_certificate: HashMap<String, Arc<Identity>>,
    quotas: Quotas,
}

// === impl Identities ===

impl Identities {
    /// Collects identities, each with the place that errors name.
    ///
    /// # Errors
    /// Texts about names and proofs that two identities share.
    pub fn new(identities: Vec<(String, Identity)>) -> Result<Identities, Vec<String>> {
        let (mut all, mut problems) = (Identities::default(), Vec::new());
        for (place, identity) in identities {
            let identity = Arc::new(identity);
            let mut taken = |what: &str, other: Option<Arc<Identity>>| {
                if let Some(other) = other {
                    let name = &other.name;
                    problems.push(format!("{place}: {what} is also that of the identity {name}"));
                }
            };
            let of = || Arc::clone(&identity);
            taken("its name", all.by_name.insert(identity.name.clone(), of()));
            for token in &identity.tokens {
                taken("one of its tokens", all.by_token.insert(*token, of()));
            }
            for subject in &identity.jwt {
                let what = format!("the subject {:?}", subject.subject);
                taken(&what, all.by_jwt.insert(subject.clone(), of()));
            }
            for name in &identity.certificates {
                let what = format!("the certificate name {name:?}");
                taken(&what, all.by_certificate.insert(name.clone(), of()));
            }
        }
        if problems.is_empty() { Ok(all) } else { Err(problems) }
    }

    /// Adds the quotas of identities and namespaces.
    #[must_use]
    pub fn with_quotas(self, quotas: Quotas) -> Identities {
        Identities { quotas, ..self }
    }

    /// Returns the quotas of identities and namespaces.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Returns whether there is no identity.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Returns the number of identities.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Returns the names in order.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.by_name.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }

    /// Returns the identity of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Identity>> {
        self.by_name.get(name)
    }

    /// Returns the identity to which a token belongs.
    pub(super) fn by_token(&self, token: &str) -> Option<&Arc<Identity>> {
        self.by_token.get(&TokenHash::of(token))
    }

    /// Returns the identity to which a subject of JSON Web Tokens belongs.
    pub(super) fn by_jwt(&self, subject: &JwtSubject) -> Option<&Arc<Identity>> {
        self.by_jwt.get(subject)
    }

    /// Returns the identity to which a name in a client certificate belongs.
    pub(super) fn by_certificate(&self, name: &str) -> Option<&Arc<Identity>> {
        self.by_certificate.get(name)
    }
}

//! All identities that are known at one moment.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::identity::{Identity, JwtSubject};
use super::jwt::Issuer;
use super::quota::identity_meter::IdentityMeters;
use super::quota::{NamespaceMeters, Quotas};
use super::token::TokenHash;

/// Identities, by what proves them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identities {
    by_name: HashMap<String, Arc<Identity>>,
    by_token: HashMap<TokenHash, Arc<Identity>>,
    by_jwt: HashMap<JwtSubject, Arc<Identity>>,
    by_certificate: HashMap<String, Arc<Identity>>,
    /// Issuers of JSON Web Tokens, by their claim `iss`.
    issuers: HashMap<String, Arc<Issuer>>,
    quotas: Quotas,
}

// === impl Identities ===

impl Identities {
    /// Collects identities and the issuers of their JSON Web Tokens, each with the place that errors name.
    ///
    /// # Errors
    /// Texts about names and proofs that two of them share, and about issuers that are not there.
    pub fn new(
        identities: Vec<(String, Identity)>,
        issuers: Vec<(String, Issuer)>,
    ) -> Result<Identities, Vec<String>> {
        let (mut all, mut problems) = (Identities::default(), Vec::new());
        let names = all.add_issuers(issuers, &mut problems);
        for (place, identity) in identities {
            let identity = Arc::new(identity);
            for subject in identity.jwt.iter().filter(|of| !names.contains(&of.issuer)) {
                let (name, names) = (&subject.issuer, names.join(", "));
                let names = if names.is_empty() { "none" } else { &names };
                problems.push(format!(
                    "{place}.jwt: there is no [[issuer]] with the name {name:?}; there are: {names}"
                ));
            }
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

    /// Adds issuers, and returns their names.
    fn add_issuers(
        &mut self,
        issuers: Vec<(String, Issuer)>,
        problems: &mut Vec<String>,
    ) -> Vec<String> {
        let mut names: Vec<String> = Vec::with_capacity(issuers.len());
        for (place, issuer) in issuers {
            if names.contains(&issuer.name) {
                problems.push(format!("{place}.name: another issuer has the same name"));
            }
            names.push(issuer.name.clone());
            let other = self.issuers.insert(issuer.issuer.clone(), Arc::new(issuer));
            if let Some(other) = other {
                let name = &other.name;
                problems.push(format!("{place}.issuer: it is also that of the issuer {name}"));
            }
        }
        names
    }

    /// Adds the quotas of identities and namespaces.
    #[must_use]
    pub fn with_quotas(self, quotas: Quotas) -> Identities {
        Identities { quotas, ..self }
    }

    /// Puts the quotas in force.
    pub(super) fn put_quotas(&self, meters: &IdentityMeters, namespaces: &NamespaceMeters) {
        meters.replace(self.names(), &self.quotas.identities, Instant::now());
        namespaces.replace(&self.quotas.namespaces);
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

    /// Returns the issuers of JSON Web Tokens, in no order.
    pub fn issuers(&self) -> impl Iterator<Item = &Arc<Issuer>> {
        self.issuers.values()
    }

    /// Returns the issuer whose tokens have this claim `iss`.
    pub(super) fn issuer_of(&self, iss: &str) -> Option<&Arc<Issuer>> {
        self.issuers.get(iss)
    }

    /// Returns the identity to which the token of a hash belongs.
    pub(super) fn by_token(&self, token: &TokenHash) -> Option<&Arc<Identity>> {
        self.by_token.get(token)
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

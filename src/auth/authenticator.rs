//! From the credentials of a call to its caller.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use subtle::ConstantTimeEq as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::identities::Identities;
use super::identity::Identity;
use super::quota::identity_meter::IdentityMeters;
use super::quota::{IdentityMeter, NamespaceMeters};
use crate::metrics::Metrics;

/// Maximum number of bytes of an `authorization` header; JSON Web Tokens have up to a few thousand.
const HEADER_BYTES_MAX: usize = 8 << 10;
/// Scheme of the header, which is compared without case (RFC 9110, section 11.1).
const SCHEME: &str = "bearer ";

/// Recognizes callers by the identities in force. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Authenticator(Option<Arc<Current>>);

/// Identities in force.
#[derive(Debug)]
struct Current {
    identities: watch::Sender<Arc<Identities>>,
    /// Number of the identities in force, which rises with each change.
    generation: AtomicU64,
    /// Number of reloads that failed since the last one that did not.
    failed_reloads: AtomicU64,
    meters: IdentityMeters,
    namespaces: NamespaceMeters,
}

/// Caller of a call: an identity, or anyone where there are no identities.
#[derive(Clone, Debug)]
pub struct Caller(Option<Arc<KnownCaller>>);

/// Caller that is an identity.
#[derive(Debug)]
struct KnownCaller {
    identity: Arc<Identity>,
    meter: Arc<IdentityMeter>,
}

/// Credentials that a connection brings, and the last ones of its calls.
#[derive(Debug)]
pub struct ConnectionCredentials {
    authenticator: Authenticator,
    /// Names in the client certificate that the connection was opened with.
    certificate: Vec<String>,
    /// Calls of a connection mostly have the same header.
    last: Mutex<Option<Recognized>>,
}

/// Result for a header, as long as the identities do not change.
#[derive(Debug)]
struct Recognized {
    generation: u64,
    /// Header; `None`: the call had none.
    header: Option<Vec<u8>>,
    caller: Caller,
}

/// Reason why a caller is not recognized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    /// The call has no credentials.
    #[error(
        "the call has no credentials; send a token in the header `authorization: Bearer TOKEN`"
    )]
    Missing,
    /// The header has another form.
    #[error("the header `authorization` is not of the form `Bearer TOKEN`")]
    NotBearer,
    /// No identity has this token.
    #[error("the token belongs to no identity of this server; it may have been replaced")]
    UnknownToken,
    /// No identity has a name of the client certificate.
    #[error("no name in the client certificate belongs to an identity of this server")]
    UnknownCertificate,
}

// === impl Authenticator ===

impl Authenticator {
    /// Creates one for a server without identities: everyone may do everything.
    #[must_use]
    pub fn off() -> Authenticator {
        Authenticator(None)
    }

    /// Creates one with these identities, whose usage is counted in `metrics`.
    #[must_use]
    pub fn new(identities: Identities, metrics: &Metrics) -> Authenticator {
        let current = Current {
            identities: watch::Sender::default(),
            generation: AtomicU64::new(1),
            failed_reloads: AtomicU64::new(0),
            meters: IdentityMeters::new(metrics),
            namespaces: NamespaceMeters::new(metrics),
        };
        let authenticator = Authenticator(Some(Arc::new(current)));
        authenticator.replace(identities);
        authenticator
    }

    /// Returns whether callers have to prove an identity.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Puts these identities in force. Calls in flight end as they began; streams look again at what they may take.
    pub fn replace(&self, identities: Identities) {
        if let Some(current) = &self.0 {
            current.failed_reloads.store(0, Ordering::Relaxed);
            let quotas = identities.quotas();
            current.meters.replace(identities.names(), &quotas.identities, Instant::now());
            current.namespaces.replace(&quotas.namespaces);
            current.identities.send_replace(Arc::new(identities));
            current.generation.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the namespaces with a quota; `None`: there are no identities.
    #[must_use]
    pub fn namespaces(&self) -> Option<&NamespaceMeters> {
        self.0.as_ref().map(|current| &current.namespaces)
    }

    /// Sets the number of live servers, this one included: each has the same share of all rates.
    pub fn set_servers(&self, servers: usize) {
        if let Some(current) = &self.0 {
            current.meters.set_servers(u32::try_from(servers).unwrap_or(u32::MAX));
        }
    }

    /// Counts a reload that failed.
    pub(super) fn reload_failed(&self) {
        if let Some(current) = &self.0 {
            current.failed_reloads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of reloads that failed since the last one that did not.
    #[must_use]
    pub fn failed_reloads(&self) -> u64 {
        self.0.as_ref().map_or(0, |current| current.failed_reloads.load(Ordering::Relaxed))
    }

    /// Returns the credentials of a connection that was opened with a certificate of these names, which is verified;
    /// empty: with none.
    #[must_use]
    pub fn connection(&self, certificate: Vec<String>) -> ConnectionCredentials {
        ConnectionCredentials { authenticator: self.clone(), certificate, last: Mutex::default() }
    }

    /// Waits until `caller` is not an identity in force any more, as it was: it was removed, or its rights changed.
    pub async fn changed(&self, caller: &Caller) {
        let (Some(current), Some(identity)) =
            (&self.0, caller.0.as_ref().map(|known| &known.identity))
        else {
            return std::future::pending().await;
        };
        let mut identities = current.identities.subscribe();
        let is_other = |now: &Arc<Identities>| now.get(&identity.name) != Some(identity);
        if identities.wait_for(is_other).await.is_err() {
            std::future::pending().await
        }
    }
}

// === impl ConnectionCredentials ===

impl ConnectionCredentials {
    /// Returns the caller of a call with this `authorization` header. A token comes before the certificate of the
    /// connection: a proxy has one of its own.
    ///
    /// # Errors
    /// [`Unauthenticated`], if it proves no identity.
    pub fn caller(&self, header: Option<&[u8]>) -> Result<Caller, Unauthenticated> {
        let Some(current) = &self.authenticator.0 else { return Ok(Caller(None)) };
        let generation = current.generation.load(Ordering::Acquire);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &*last
            && last.generation == generation
            && is_same(last.header.as_deref(), header)
        {
            return Ok(last.caller.clone());
        }
        let identities = Arc::clone(&current.identities.borrow());
        let identity = Arc::clone(self.recognize(&identities, header)?);
        let meter = current.meters.of(&identity.name);
        let caller = Caller(Some(Arc::new(KnownCaller { identity, meter })));
        let header = header.map(<[u8]>::to_vec);
        *last = Some(Recognized { generation, header, caller: caller.clone() });
        Ok(caller)
    }

    fn recognize<'a>(
        &self,
        identities: &'a Identities,
        header: Option<&[u8]>,
    ) -> Result<&'a Arc<Identity>, Unauthenticated> {
        let Some(header) = header else {
            let mut names = self.certificate.iter();
            let found = names.find_map(|name| identities.by_certificate(name));
            let is_missing = self.certificate.is_empty();
            return found.ok_or(if is_missing {
                Unauthenticated::Missing
            } else {
                Unauthenticated::UnknownCertificate
            });
        };
        let token = bearer_token(header).ok_or(Unauthenticated::NotBearer)?;
        identities.by_token(token).ok_or(Unauthenticated::UnknownToken)
    }
}

/// Returns whether two headers are the same, in a time that does not depend on where they differ: a proxy may send
/// calls of several clients on one connection.
fn is_same(a: Option<&[u8]>, b: Option<&[u8]>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.ct_eq(b).into(),
        (None, None) => true,
        _ => false,
    }
}

fn bearer_token(header: &[u8]) -> Option<&str> {
    let header = std::str::from_utf8(header).ok().filter(|text| text.len() <= HEADER_BYTES_MAX)?;
    let (scheme, token) = header.split_at_checked(SCHEME.len())?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case(SCHEME) && !token.is_empty()).then_some(token)
}

// === impl Caller ===

impl Caller {
    /// Creates the caller where there are no identities.
    #[must_use]
    pub fn anyone() -> Caller {
        Caller(None)
    }

    /// Returns the identity; `None`: everyone may do everything.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.0.as_ref().map(|known| &*known.identity)
    }

    /// Returns the meter of the identity; `None`: nothing is limited or counted.
    #[must_use]
    pub fn meter(&self) -> Option<&Arc<IdentityMeter>> {
        self.0.as_ref().map(|known| &known.meter)
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.identity().map_or("anyone", |identity| &identity.name))
    }
}

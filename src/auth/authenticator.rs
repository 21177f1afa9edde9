//! From the credentials of a call to its caller.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::Time;
use crate::metrics::Metrics;
use crate::tls::PeerCertificate;

use super::identities::Identities;
use super::identity::Identity;
use super::in_force::{InForce, JwtProof};
use super::jwt::JwtError;
use super::jwt::issuer::Issuer;
use super::jwt::key_set::KeyId;
use super::jwt::token_cache::TokenCache;
use super::jwt::unverified::is_jwt;
use super::quota::identity_meter::IdentityMeters;
use super::quota::{IdentityMeter, NamespaceMeters};
use super::token::TokenHash;

/// Maximum number of bytes of a token; JSON Web Tokens have up to a few thousand.
const TOKEN_BYTES_MAX: usize = 8 << 10;
/// Scheme of the header, which is compared without case (RFC 9110, section 11.1).
const SCHEME: &str = "bearer ";

/// Recognizes callers by the identities in force. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Authenticator(Option<Arc<Current>>);

/// Identities in force.
#[derive(Debug)]
struct Current {
    in_force: watch::Sender<Arc<InForce>>,
    /// Number of the identities and keys in force, which rises with each change.
    generation: Arc<watch::Sender<u64>>,
    clock: Clock,
    /// JSON Web Tokens that were verified for any connection.
    verified: TokenCache<Caller>,
    /// Number of reloads that failed since the last one that did not.
    failed_reloads: AtomicU64,
    meters: IdentityMeters,
    namespaces: NamespaceMeters,
}

/// Caller of a call: an identity, or anyone where there are no identities.
#[derive(Clone, Debug)]
pub struct Caller {
    known: Option<Arc<KnownCaller>>,
    /// Client certificate of its connection, without which it may not call.
    certificate: Option<Arc<PeerCertificate>>,
}

/// Caller that is an identity.
#[derive(Debug)]
struct KnownCaller {
    identity: Arc<Identity>,
    meter: Arc<IdentityMeter>,
    token: Option<JwtEnd>,
}

/// End of the JSON Web Token that proved a caller.
#[derive(Clone, Debug)]
struct JwtEnd {
    issuer: Arc<Issuer>,
    key: KeyId,
    at: Time,
}

/// Credentials that a connection brings, and the last ones of its calls.
#[derive(Debug)]
pub struct ConnectionCredentials {
    authenticator: Authenticator,
    /// Client certificate that the connection was opened with.
    certificate: Option<Arc<PeerCertificate>>,
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
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthenticated {
    /// The call has no credentials.
    #[error(
        "the call has no credentials; send a token in the header `authorization: Bearer TOKEN`"
    )]
    Missing,
    /// The header has another form.
    #[error("the header `authorization` is not of the form `Bearer TOKEN`")]
    NotBearer,
    /// The token is longer than any that is accepted.
    #[error("the token has more than {TOKEN_BYTES_MAX} bytes; request one with fewer claims")]
    TooLarge,
    /// No identity has this token.
    #[error("the token belongs to no identity of this server; it may have been replaced")]
    UnknownToken,
    /// No identity has a name of the client certificate.
    #[error("no name in the client certificate belongs to an identity of this server")]
    UnknownCertificate,
    /// The client certificate of the connection is not valid any more.
    #[error(
        "the client certificate of this connection has expired, or its authority is not accepted any more; connect \
         again, with a new one"
    )]
    CertificateEnded,
    /// The token is a JSON Web Token that is refused.
    #[error(transparent)]
    Jwt(#[from] JwtError),
}

// === impl Authenticator ===

impl Authenticator {
    /// Creates one for a server without identities: everyone may do everything.
    #[must_use]
    pub fn off() -> Authenticator {
        Authenticator(None)
    }

    /// Creates one with these identities, whose usage is counted in `metrics`. JSON Web Tokens are valid by this clock.
    /// If an issuer has its keys at a URL, it has to be created within a runtime, and begins to fetch them.
    #[must_use]
    pub fn new(identities: Identities, clock: Clock, metrics: &Metrics) -> Authenticator {
        let generation = Arc::new(watch::Sender::new(1));
        let (meters, namespaces) = (IdentityMeters::new(metrics), NamespaceMeters::new(metrics));
        identities.put_quotas(&meters, &namespaces);
        let in_force = InForce::new(identities, None, &generation);
        Authenticator(Some(Arc::new(Current {
            in_force: watch::Sender::new(Arc::new(in_force)),
            generation,
            clock,
            verified: TokenCache::new(),
            failed_reloads: AtomicU64::new(0),
            meters,
            namespaces,
        })))
    }

    /// Waits until the keys of each issuer were fetched once, or could not be, which is logged.
    pub async fn keys_tried(&self) {
        if let Some(current) = &self.0 {
            let in_force = Arc::clone(&current.in_force.borrow());
            in_force.keys_tried().await;
        }
    }

    /// Returns the identities in force; `None`: there are none.
    pub(super) fn identities(&self) -> Option<Identities> {
        self.0.as_ref().map(|current| current.in_force.borrow().identities.clone())
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
            identities.put_quotas(&current.meters, &current.namespaces);
            let former = Arc::clone(&current.in_force.borrow());
            let in_force = InForce::new(identities, Some(&former), &current.generation);
            current.in_force.send_replace(Arc::new(in_force));
            current.generation.send_modify(|generation| *generation += 1);
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

    /// Returns the credentials of a connection that was opened with this certificate, which is verified, or with none.
    #[must_use]
    pub fn connection(&self, certificate: Option<Arc<PeerCertificate>>) -> ConnectionCredentials {
        ConnectionCredentials { authenticator: self.clone(), certificate, last: Mutex::default() }
    }

    /// Waits until `caller` has not its rights any more: its identity was removed or changed, what proved it has expired,
    /// or who signed that is not trusted any more.
    pub async fn ended(&self, caller: &Caller) {
        let certificate_ended = async {
            match &caller.certificate {
                Some(certificate) => certificate.ended().await,
                None => std::future::pending().await,
            }
        };
        let Some(current) = &self.0 else { return certificate_ended.await };
        tokio::select! {
            () = current.changed(caller) => {}
            () = current.expired(caller) => {}
            () = certificate_ended => {}
        }
    }
}

// === impl Current ===

impl Current {
    /// Waits until the caller is not recognized any more as it was, whatever the time is.
    async fn changed(&self, caller: &Caller) {
        let Some(known) = &caller.known else { return std::future::pending().await };
        let KnownCaller { identity, token, .. } = &**known;
        let mut generations = self.generation.subscribe();
        loop {
            let now = Arc::clone(&self.in_force.borrow());
            let trusts = |token: &JwtEnd| now.still_trusts(&token.issuer, token.key);
            if now.identities.get(&identity.name) != Some(identity)
                || !token.as_ref().is_none_or(trusts)
            {
                return;
            }
            if generations.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn expired(&self, caller: &Caller) {
        match caller.ends() {
            Some(at) => self.clock.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    fn is_expired(&self, caller: &Caller) -> bool {
        caller.ends().is_some_and(|at| self.clock.now() >= at)
    }

    /// Returns the caller that was proved, by a token without an end of its own or by this JSON Web Token.
    fn known(&self, identity: &Arc<Identity>, token: Option<JwtEnd>) -> Caller {
        let (identity, meter) = (Arc::clone(identity), self.meters.of(&identity.name));
        let known = Some(Arc::new(KnownCaller { identity, meter, token }));
        Caller { known, certificate: None }
    }

    /// Returns the caller that a JSON Web Token proves.
    fn jwt_caller(
        &self,
        in_force: &InForce,
        generation: u64,
        (token, hash): (&str, TokenHash),
    ) -> Result<Caller, JwtError> {
        let known = self.verified.get(&hash, generation);
        if let Some(caller) = known.filter(|caller| !self.is_expired(caller)) {
            return Ok(caller);
        }
        let JwtProof { identity, issuer, ends, key } = in_force.verify(token, self.clock.now())?;
        let token = Some(JwtEnd { issuer, key, at: ends });
        let caller = self.known(&identity, token);
        self.verified.put(hash, generation, caller.clone());
        Ok(caller)
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
        let certificate = self.certificate.as_ref();
        if certificate.is_some_and(|certificate| certificate.has_ended()) {
            return Err(Unauthenticated::CertificateEnded);
        }
        let certificate = certificate.cloned();
        let Some(current) = &self.authenticator.0 else {
            return Ok(Caller { certificate, ..Caller::anyone() });
        };
        let generation = *current.generation.borrow();
        let mut last = self.last.lock();
        if let Some(last) = &*last
            && last.generation == generation
            && is_same(last.header.as_deref(), header)
            && !current.is_expired(&last.caller)
        {
            return Ok(last.caller.clone());
        }
        let caller = Caller { certificate, ..self.recognize(current, generation, header)? };
        let header = header.map(<[u8]>::to_vec);
        *last = Some(Recognized { generation, header, caller: caller.clone() });
        Ok(caller)
    }

    fn recognize(
        &self,
        current: &Current,
        generation: u64,
        header: Option<&[u8]>,
    ) -> Result<Caller, Unauthenticated> {
        let in_force = Arc::clone(&current.in_force.borrow());
        let identities = &in_force.identities;
        let Some(header) = header else {
            let mut names = self.certificate.iter().flat_map(|certificate| certificate.names());
            let found = names.find_map(|name| identities.by_certificate(name));
            let known = found.map(|identity| current.known(identity, None));
            let has_names = self.certificate.as_ref().is_some_and(|of| of.names().next().is_some());
            return known.ok_or(match has_names {
                true => Unauthenticated::UnknownCertificate,
                false => Unauthenticated::Missing,
            });
        };
        let token = bearer_token(header)?;
        let hash = TokenHash::of(token);
        if let Some(identity) = identities.by_token(&hash) {
            return Ok(current.known(identity, None));
        }
        if !is_jwt(token) {
            return Err(Unauthenticated::UnknownToken);
        }
        Ok(current.jwt_caller(&in_force, generation, (token, hash))?)
    }
}

/// Returns whether two headers are the same, in a time that does not depend on where they differ: a proxy may send
/// calls of several clients on one connection.
fn is_same(a: Option<&[u8]>, b: Option<&[u8]>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.len() == b.len() && have_same_bytes(a, b),
        (None, None) => true,
        _ => false,
    }
}

/// Compares texts of one length, eight bytes at a time.
fn have_same_bytes(a: &[u8], b: &[u8]) -> bool {
    let (words_a, rest_a) = a.as_chunks::<8>();
    let (words_b, rest_b) = b.as_chunks::<8>();
    let mut same = rest_a.ct_eq(rest_b);
    for (a, b) in words_a.iter().zip(words_b) {
        same &= u64::from_ne_bytes(*a).ct_eq(&u64::from_ne_bytes(*b));
    }
    same.into()
}

fn bearer_token(header: &[u8]) -> Result<&str, Unauthenticated> {
    if header.len() > SCHEME.len() + TOKEN_BYTES_MAX {
        return Err(Unauthenticated::TooLarge);
    }
    let parts =
        std::str::from_utf8(header).ok().and_then(|text| text.split_at_checked(SCHEME.len()));
    let token = parts.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(SCHEME));
    let token = token.map(|(_, token)| token.trim()).filter(|token| !token.is_empty());
    token.ok_or(Unauthenticated::NotBearer)
}

// === impl Unauthenticated ===

impl Unauthenticated {
    /// Returns whether the same credentials may be accepted in a moment.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Unauthenticated::Jwt(error) if error.is_temporary())
    }
}

// === impl Caller ===

impl Caller {
    /// Creates the caller where there are no identities.
    #[must_use]
    pub fn anyone() -> Caller {
        Caller { known: None, certificate: None }
    }

    /// Returns the identity; `None`: everyone may do everything.
    #[must_use]
    pub fn identity(&self) -> Option<&Arc<Identity>> {
        self.known.as_ref().map(|known| &known.identity)
    }

    /// Returns the meter of the identity; `None`: nothing is limited or counted.
    #[must_use]
    pub fn meter(&self) -> Option<&Arc<IdentityMeter>> {
        self.known.as_ref().map(|known| &known.meter)
    }

    /// Returns the time at which the token that proved the caller is not accepted any more, its leeway included;
    /// `None`: it has no end.
    #[must_use]
    pub fn ends(&self) -> Option<Time> {
        self.known.as_ref()?.token.as_ref().map(|token| token.at)
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.identity().map_or("anyone", |identity| &identity.name))
    }
}

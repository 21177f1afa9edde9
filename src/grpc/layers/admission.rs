//! Limits on one call: a slot among the unary calls once its message has arrived, and bytes while the call is in
//! flight.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tonic::Status;

use crate::domain::limit;

use crate::connections::{Standing, WatchPlace};

use super::super::status::RpcError;
use super::count_limit::CountLimit;
use super::method::{MethodKind, RpcMethod};
use super::write_backlog::WriteBacklog;

/// Bytes counted for each call in addition to its message: its headers and the memory for handling it, of which the
/// buffer for its message takes a half.
const CALL_BYTES: usize = 16 << 10;
/// Divisor of the share of one connection in the bytes in flight: one eighth. A single connection cannot block the
/// others, and at the default the share has room for seven of the largest messages.
const CONNECTION_SHARE: usize = 8;
/// Divisor of the part of the bytes that large answers may fill: a half. Clients that do not read can fill it, with eight
/// connections; the other half is left for requests and small answers.
const ANSWERS_SHARE: usize = 2;
/// Divisor of the reserve for Ack, Nack and Extend: a quarter more slots and bytes, so that a flood of other calls
/// does not cost leases.
const RESERVE_SHARE: usize = 4;
/// Minimum number of slots in the reserve, even where the limit for other calls is small.
const RESERVE_MIN: usize = 16;
/// Maximum number of health and reflection calls in flight on one connection. Other calls are not counted with them,
/// so that probes work under load.
const PROBES_MAX: usize = 64;
/// Divisor of the part of them that watches may be on a connection without an identity: 4 watches, so that half of the
/// calls that such a connection may have ([`limit::ANONYMOUS_CALLS_MAX`]) come to an end.
const ANONYMOUS_WATCHES_SHARE: usize = 16;
/// Maximum size of the message of a health call: the name of a service. No bytes are counted for it.
const HEALTH_BYTES_MAX: usize = 4 << 10;

/// Limits shared by all calls.
#[derive(Debug)]
pub(super) struct SharedLimits {
    calls: CountLimit,
    bytes: CountLimit,
}

/// Limits shared by the calls of one connection.
#[derive(Debug)]
pub(super) struct ConnectionLimits {
    bytes: CountLimit,
    probes: CountLimit,
    pub(super) backlog: Arc<WriteBacklog>,
}

/// Resources that one call holds of the limits. Dropping it returns all of them.
#[derive(Debug)]
pub(super) struct CallAdmission {
    bounds: Arc<SharedLimits>,
    connection: Arc<ConnectionLimits>,
    method: RpcMethod,
    bytes: AtomicUsize,
    has_slot: AtomicBool,
    _watch: Option<WatchPlace>,
    /// Reason why the message was not read to the end.
    refused: OnceLock<Status>,
}

// === impl SharedLimits ===

impl SharedLimits {
    /// Creates limits for `calls_max` unary calls with a message and `bytes_max` bytes.
    pub(super) fn new(calls_max: usize, bytes_max: usize) -> SharedLimits {
        let reserve = |max: usize, min: usize| (max / RESERVE_SHARE).max(min);
        SharedLimits {
            calls: CountLimit::new(calls_max, reserve(calls_max, RESERVE_MIN)),
            bytes: CountLimit::new(bytes_max, reserve(bytes_max, limit::REQUEST_BYTES_MAX)),
        }
    }

    /// Creates the limits of a new connection, with room for a message of `message_max` bytes.
    pub(super) fn connection(&self, message_max: usize) -> ConnectionLimits {
        let max = (self.bytes.max() / CONNECTION_SHARE).max(message_max + CALL_BYTES);
        ConnectionLimits {
            bytes: CountLimit::new(max, max / RESERVE_SHARE),
            probes: CountLimit::new(PROBES_MAX, 0),
            backlog: WriteBacklog::of_connection(),
        }
    }
}

// === impl CallAdmission ===

impl CallAdmission {
    /// Takes the resources that a call needs before its message arrives. Calls that any client may make take nothing
    /// that others share: the connection bounds them, and watches, which do not end, are counted by address.
    pub(super) fn begin(
        bounds: &Arc<SharedLimits>,
        connection: &Arc<ConnectionLimits>,
        standing: &Standing,
        (method, has_identity): (RpcMethod, bool),
    ) -> Result<Arc<CallAdmission>, RpcError> {
        let is_watch = method.kind == MethodKind::Watch && !has_identity;
        let watch = is_watch.then(|| standing.open_watch().ok_or_else(RpcError::too_many_watches));
        let watch = watch.transpose()?;
        if method.kind.is_probe() {
            let divisor =
                if is_watch && !standing.is_known() { ANONYMOUS_WATCHES_SHARE } else { 1 };
            if !connection.probes.try_add_to_part(1, divisor) {
                return Err(RpcError::too_many_requests(PROBES_MAX / divisor));
            }
        }
        let admission = CallAdmission {
            bounds: Arc::clone(bounds),
            connection: Arc::clone(connection),
            method,
            bytes: AtomicUsize::new(0),
            has_slot: AtomicBool::new(false),
            _watch: watch,
            refused: OnceLock::new(),
        };
        if !method.is_health() {
            admission.take_bytes(CALL_BYTES)?;
        }
        Ok(Arc::new(admission))
    }

    /// Takes bytes of a received message or of an answer.
    pub(super) fn take_bytes(&self, count: usize) -> Result<(), RpcError> {
        if count == 0 {
            return Ok(());
        }
        if self.method.is_health() {
            let all = self.bytes.fetch_add(count, Ordering::Relaxed) + count;
            let fits = all <= HEALTH_BYTES_MAX;
            return fits.then_some(()).ok_or_else(|| RpcError::message_too_large(HEALTH_BYTES_MAX));
        }
        let (all, own) = (&self.bounds.bytes, &self.connection.bytes);
        let settles = self.method.settles();
        if !own.try_add(count, settles) {
            return Err(RpcError::too_many_bytes(own.max()));
        }
        if !all.try_add(count, settles) {
            own.subtract(count);
            return Err(RpcError::too_many_bytes(all.max()));
        }
        self.bytes.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// Takes bytes of a large answer that can be withheld.
    pub(super) fn take_answer_bytes(&self, count: usize) -> Result<(), RpcError> {
        let (all, own) = (&self.bounds.bytes, &self.connection.bytes);
        if !own.try_add(count, false) {
            return Err(RpcError::too_many_bytes(own.max()));
        }
        if !all.try_add_to_part(count, ANSWERS_SHARE) {
            own.subtract(count);
            return Err(RpcError::too_many_bytes(all.max() / ANSWERS_SHARE));
        }
        self.bytes.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the memory of a decoded message. A message that is alone on its connection gets it even if the share of the
    /// connection is smaller: a retry could not succeed either.
    pub(super) fn take_decoded_bytes(&self, count: usize) -> Result<(), RpcError> {
        let (all, own) = (&self.bounds.bytes, &self.connection.bytes);
        if own.count() > self.bytes.load(Ordering::Relaxed) {
            return self.take_bytes(count);
        }
        if !all.try_add(count, self.method.settles()) {
            return Err(RpcError::too_many_bytes(all.max()));
        }
        own.add(count);
        self.bytes.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the RPC of the call.
    pub(super) fn method(&self) -> RpcMethod {
        self.method
    }

    /// Takes bytes of an answer that must be sent, even beyond the limits.
    pub(super) fn force_bytes(&self, count: usize) {
        if self.method.is_health() {
            return;
        }
        self.connection.bytes.add(count);
        self.bounds.bytes.add(count);
        self.bytes.fetch_add(count, Ordering::Relaxed);
    }

    /// Records that the message has arrived: a unary call takes its slot, and a stream or a watch, which has no end,
    /// returns the bytes of its request.
    pub(super) fn request_received(&self) -> Result<(), RpcError> {
        match self.method.kind {
            MethodKind::Unary => {
                let calls = &self.bounds.calls;
                if !calls.try_add(1, self.method.settles()) {
                    return Err(RpcError::too_many_requests(calls.max()));
                }
                self.has_slot.store(true, Ordering::Relaxed);
            }
            MethodKind::Stream | MethodKind::Watch => self.return_bytes(),
            MethodKind::Pull | MethodKind::Other => {}
        }
        Ok(())
    }

    /// Refuses the call while its message is read.
    pub(super) fn refuse(&self, status: Status) {
        let _ = self.refused.set(status);
    }

    /// Returns the error that ended the message early, if there was one.
    pub(super) fn refusal(&self) -> Option<&Status> {
        self.refused.get()
    }

    /// Returns the backlog of unwritten answers of the connection.
    pub(super) fn backlog(&self) -> &Arc<WriteBacklog> {
        &self.connection.backlog
    }

    fn return_bytes(&self) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        if self.method.is_health() {
            return;
        }
        self.connection.bytes.subtract(bytes);
        self.bounds.bytes.subtract(bytes);
    }
}

impl Drop for CallAdmission {
    fn drop(&mut self) {
        self.return_bytes();
        if self.has_slot.load(Ordering::Relaxed) {
            self.bounds.calls.subtract(1);
        }
        if self.method.kind.is_probe() {
            self.connection.probes.subtract(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn method(name: &str) -> RpcMethod {
        RpcMethod::from_path(&format!("/ringq.v1.QueueService/{name}"))
    }

    /// Takes the resources of a call of an identity.
    fn begin(
        bounds: &Arc<SharedLimits>,
        connection: &Arc<ConnectionLimits>,
        method: RpcMethod,
    ) -> Result<Arc<CallAdmission>, RpcError> {
        CallAdmission::begin(bounds, connection, &Standing::with_place(), (method, true))
    }

    #[test]
    fn bytes_are_bounded_by_connection_and_in_all_and_come_back() {
        let bounds = Arc::new(SharedLimits::new(10, 64 * MIB));
        let connections: Vec<_> =
            (0..9).map(|_| Arc::new(bounds.connection(limit::REQUEST_BYTES_MAX))).collect();
        let take = |connection, name, bytes| {
            let admission = begin(&bounds, connection, method(name))?;
            admission.take_bytes(bytes).map(|()| admission)
        };
        let enqueue = |connection| take(connection, "Enqueue", 7 * MIB);
        let held: Vec<_> = connections[..8].iter().map(|c| enqueue(c).unwrap()).collect();
        assert!(take(&connections[0], "Enqueue", 2 * MIB).is_err(), "the share of a connection");
        assert!(take(&connections[0], "Ack", 2 * MIB).is_ok(), "settles have a reserve in it");
        assert!(enqueue(&connections[8]).is_ok());
        let more: Vec<_> =
            connections[..8].iter().map(|c| take(c, "Enqueue", MIB / 2).unwrap()).collect();
        assert!(enqueue(&connections[8]).is_err(), "the bytes of all connections");
        assert!(take(&connections[8], "Extend", 7 * MIB).is_ok());
        drop((held, more));
        let all = [&bounds.bytes].into_iter().chain(connections.iter().map(|c| &c.bytes));
        assert!(all.into_iter().all(|gate| gate.add(0) == 0));
    }

    #[test]
    fn a_decoded_message_alone_on_its_connection_may_exceed_its_share() {
        let bounds = Arc::new(SharedLimits::new(10, 32 * MIB));
        let connection = Arc::new(bounds.connection(limit::REQUEST_BYTES_MAX));
        let batch = || begin(&bounds, &connection, method("BatchEnqueue"));
        let first = batch().unwrap();
        first.take_decoded_bytes(20 * MIB).unwrap();
        assert!(batch().is_err(), "the share is used up");
        drop(first);
        let (first, second) = (batch().unwrap(), batch().unwrap());
        assert!(first.take_decoded_bytes(20 * MIB).is_err(), "not alone");
        assert!(second.take_decoded_bytes(MIB).is_ok());
        drop((first, second));
        assert!(
            batch().unwrap().take_decoded_bytes(33 * MIB).is_err(),
            "the bytes of all connections"
        );
        assert_eq!((bounds.bytes.count(), connection.bytes.count()), (0, 0));
    }

    #[test]
    fn large_answers_leave_a_half_for_requests() {
        let bounds = Arc::new(SharedLimits::new(10, 32 * MIB));
        let connections: Vec<_> =
            (0..9).map(|_| Arc::new(bounds.connection(limit::REQUEST_BYTES_MAX))).collect();
        let get = |connection| begin(&bounds, connection, method("Get")).unwrap();
        let calls: Vec<_> = connections.iter().map(get).collect();
        let taken = calls.iter().filter(|call| call.take_answer_bytes(3 * MIB).is_ok()).count();
        assert_eq!(taken, 5);
        assert!(calls[8].take_bytes(3 * MIB).is_ok());
        drop(calls);
        assert_eq!(bounds.bytes.count(), 0);
    }

    #[test]
    fn a_unary_call_has_its_place_once_its_message_is_there() {
        let bounds = Arc::new(SharedLimits::new(1, MIB));
        let connection = Arc::new(bounds.connection(limit::REQUEST_BYTES_MAX));
        let call = |name| begin(&bounds, &connection, method(name)).unwrap();
        let waiting: Vec<_> = (0..10).map(|_| call("Enqueue")).collect();
        let placed = call("Get");
        placed.request_received().unwrap();
        assert!(waiting[0].request_received().is_err());
        for name in ["Ack", "Nack", "Extend"] {
            call(name).request_received().unwrap();
        }
        call("Pull").request_received().unwrap();
        drop(placed);
        waiting[0].request_received().unwrap();
    }

    #[test]
    fn calls_without_an_end_keep_no_bytes_of_their_request() {
        let bounds = Arc::new(SharedLimits::new(1, MIB));
        let connection = Arc::new(bounds.connection(limit::REQUEST_BYTES_MAX));
        let paths =
            ["/ringq.v1.QueueService/Stream", "/externalscaler.ExternalScaler/StreamIsActive"];
        for endless in paths.map(RpcMethod::from_path) {
            let call = begin(&bounds, &connection, endless).unwrap();
            assert_eq!(bounds.bytes.count(), CALL_BYTES);
            call.request_received().unwrap();
            assert_eq!((bounds.bytes.count(), connection.bytes.count()), (0, 0));
        }
    }

    /// Whatever a client without an identity does, nothing of what others share is taken.
    #[test]
    fn health_calls_take_nothing_that_others_share() {
        let bounds = Arc::new(SharedLimits::new(1, MIB));
        let connection = Arc::new(bounds.connection(limit::REQUEST_BYTES_MAX));
        let standing = Standing::with_place();
        for name in ["Check", "Watch"] {
            let method = RpcMethod::from_path(&format!("/grpc.health.v1.Health/{name}"));
            let call = CallAdmission::begin(&bounds, &connection, &standing, (method, false));
            let call = call.unwrap();
            assert!(call.take_bytes(HEALTH_BYTES_MAX).is_ok());
            assert!(call.take_bytes(1).is_err(), "{name}: its message is a name");
            call.force_bytes(MIB);
            assert_eq!((bounds.bytes.count(), connection.bytes.count()), (0, 0), "{name}");
            call.request_received().unwrap();
            drop(call);
            assert_eq!((bounds.bytes.count(), bounds.calls.count()), (0, 0), "{name}");
        }
    }

    #[test]
    fn probes_are_bounded_by_connection_and_watches_by_address() {
        let bounds = Arc::new(SharedLimits::new(1, 4 * MIB));
        let connection = || Arc::new(bounds.connection(limit::REQUEST_BYTES_MAX));
        let (one, other) = (connection(), connection());
        let health = |name| RpcMethod::from_path(&format!("/grpc.health.v1.Health/{name}"));
        let (check, watch) = (health("Check"), health("Watch"));
        let standing = Standing::with_place();
        let open = |connection: &Arc<_>, method| {
            CallAdmission::begin(&bounds, connection, &standing, (method, false)).ok()
        };
        let held: Vec<_> = (0..PROBES_MAX).map_while(|_| open(&one, watch)).collect();
        assert_eq!(held.len(), PROBES_MAX / ANONYMOUS_WATCHES_SHARE, "without an identity");
        assert!(open(&one, check).is_some() && open(&other, watch).is_some());
        standing.identify();
        let more: Vec<_> = (0..=PROBES_MAX).map_while(|_| open(&one, watch)).collect();
        assert_eq!(held.len() + more.len(), PROBES_MAX);
        assert!(open(&one, check).is_none() && open(&other, check).is_some());
        assert!(open(&other, watch).is_none(), "as many as connections of the address");
        drop(more);
        assert!(open(&one, check).is_some() && open(&other, watch).is_some());
    }
}

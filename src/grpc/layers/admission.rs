//! What one call takes of the server's bounds: a place among the unary calls once its message is there, and bytes
//! for as long as the call is under way.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tonic::Status;

use crate::domain::limit;

use super::super::status::Failure;
use super::backlog::Backlog;
use super::gate::Gate;
use super::method::{Kind, Method};

/// Counted for each call beside its message: its headers and what handling it takes.
const CALL_BYTES: usize = 4 << 10;
/// Of the bytes under way one connection may have an eighth: one alone cannot keep others out, and seven of the
/// largest messages fit into its share at the default.
const CONNECTION_SHARE: usize = 8;
/// Ack, Nack and Extend may use a quarter more places and bytes than others: a flood of others must not cost leases.
const RESERVE_SHARE: usize = 4;
/// At least so many places, however few the others have.
const RESERVE_MIN: usize = 16;
/// Health and reflection calls under way on one connection; others are not counted with them, so that probes work
/// under load.
const PROBES_MAX: usize = 64;

/// The bounds that all calls share.
#[derive(Debug)]
pub(super) struct Bounds {
    calls: Gate,
    bytes: Gate,
}

/// What the calls of one connection share.
#[derive(Debug)]
pub(super) struct Connection {
    bytes: Gate,
    probes: Gate,
    pub(super) backlog: Arc<Backlog>,
}

/// See the module. All of it is returned when this is dropped.
#[derive(Debug)]
pub(super) struct Admission {
    bounds: Arc<Bounds>,
    connection: Arc<Connection>,
    method: Method,
    bytes: AtomicUsize,
    placed: AtomicBool,
    /// Why its message is not read to the end.
    refused: OnceLock<Status>,
}

// === impl Bounds ===

impl Bounds {
    /// At most so many unary calls with a message, and so many bytes.
    pub(super) fn new(calls_max: usize, bytes_max: usize) -> Bounds {
        let reserve = |max: usize, min: usize| (max / RESERVE_SHARE).max(min);
        Bounds {
            calls: Gate::new(calls_max, reserve(calls_max, RESERVE_MIN)),
            bytes: Gate::new(bytes_max, reserve(bytes_max, limit::REQUEST_BYTES_MAX)),
        }
    }

    /// What the calls of a new connection share.
    pub(super) fn connection(&self) -> Connection {
        let max = (self.bytes.max() / CONNECTION_SHARE).max(limit::REQUEST_BYTES_MAX);
        Connection {
            bytes: Gate::new(max, max / RESERVE_SHARE),
            probes: Gate::new(PROBES_MAX, 0),
            backlog: Backlog::of_connection(),
        }
    }
}

// === impl Admission ===

impl Admission {
    /// Takes what a call needs before its message is there.
    pub(super) fn begin(
        bounds: &Arc<Bounds>,
        connection: &Arc<Connection>,
        method: Method,
    ) -> Result<Arc<Admission>, Failure> {
        if method.kind.is_probe() && !connection.probes.enter(1, false) {
            return Err(Failure::too_many_requests(PROBES_MAX));
        }
        let admission = Admission {
            bounds: Arc::clone(bounds),
            connection: Arc::clone(connection),
            method,
            bytes: AtomicUsize::new(0),
            placed: AtomicBool::new(false),
            refused: OnceLock::new(),
        };
        admission.take(CALL_BYTES)?;
        Ok(Arc::new(admission))
    }

    /// Takes bytes that have arrived, or that an answer has.
    pub(super) fn take(&self, count: usize) -> Result<(), Failure> {
        if count == 0 {
            return Ok(());
        }
        let (all, own) = (&self.bounds.bytes, &self.connection.bytes);
        let settles = self.method.settles();
        if !own.enter(count, settles) {
            return Err(Failure::too_many_bytes(own.max()));
        }
        if !all.enter(count, settles) {
            own.leave(count);
            return Err(Failure::too_many_bytes(all.max()));
        }
        self.bytes.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// Takes bytes of an answer that must go out, even beyond the bounds.
    pub(super) fn take_in_any_case(&self, count: usize) {
        self.connection.bytes.force(count);
        self.bounds.bytes.force(count);
        self.bytes.fetch_add(count, Ordering::Relaxed);
    }

    /// The message is there: a unary call takes its place, and a stream gives back what only its request took.
    pub(super) fn arrived(&self) -> Result<(), Failure> {
        match self.method.kind {
            Kind::Unary => {
                let calls = &self.bounds.calls;
                if !calls.enter(1, self.method.settles()) {
                    return Err(Failure::too_many_requests(calls.max()));
                }
                self.placed.store(true, Ordering::Relaxed);
            }
            Kind::Stream => self.return_bytes(),
            Kind::Pull | Kind::Watch | Kind::Other => {}
        }
        Ok(())
    }

    /// Refuses the call while its message is read.
    pub(super) fn refuse(&self, status: Status) {
        let _ = self.refused.set(status);
    }

    /// Why the message was not read to the end, if it was not.
    pub(super) fn refused(&self) -> Option<&Status> {
        self.refused.get()
    }

    /// Where the answer waits for the connection.
    pub(super) fn backlog(&self) -> &Arc<Backlog> {
        &self.connection.backlog
    }

    fn return_bytes(&self) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        self.connection.bytes.leave(bytes);
        self.bounds.bytes.leave(bytes);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.return_bytes();
        if self.placed.load(Ordering::Relaxed) {
            self.bounds.calls.leave(1);
        }
        if self.method.kind.is_probe() {
            self.connection.probes.leave(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn method(name: &str) -> Method {
        Method::of(&format!("/ringq.v1.QueueService/{name}"))
    }

    #[test]
    fn bytes_are_bounded_by_connection_and_in_all_and_come_back() {
        let bounds = Arc::new(Bounds::new(10, 64 * MIB));
        let connections: Vec<_> = (0..9).map(|_| Arc::new(bounds.connection())).collect();
        let take = |connection, name, bytes| {
            let admission = Admission::begin(&bounds, connection, method(name))?;
            admission.take(bytes).map(|()| admission)
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
        assert!(all.into_iter().all(|gate| gate.force(0) == 0));
    }

    #[test]
    fn a_unary_call_has_its_place_once_its_message_is_there() {
        let bounds = Arc::new(Bounds::new(1, MIB));
        let connection = Arc::new(bounds.connection());
        let begin = |name| Admission::begin(&bounds, &connection, method(name)).unwrap();
        let waiting: Vec<_> = (0..10).map(|_| begin("Enqueue")).collect();
        let placed = begin("Get");
        placed.arrived().unwrap();
        assert!(waiting[0].arrived().is_err());
        for name in ["Ack", "Nack", "Extend"] {
            begin(name).arrived().unwrap();
        }
        begin("Pull").arrived().unwrap();
        drop(placed);
        waiting[0].arrived().unwrap();
    }

    #[test]
    fn a_stream_keeps_no_bytes_of_its_request() {
        let bounds = Arc::new(Bounds::new(1, MIB));
        let connection = Arc::new(bounds.connection());
        let stream = Admission::begin(&bounds, &connection, method("Stream")).unwrap();
        assert_eq!(bounds.bytes.force(0), CALL_BYTES);
        stream.arrived().unwrap();
        assert_eq!(bounds.bytes.force(0), 0);
    }

    #[test]
    fn probes_are_bounded_by_connection() {
        let bounds = Arc::new(Bounds::new(1, MIB));
        let (one, other) = (Arc::new(bounds.connection()), Arc::new(bounds.connection()));
        let watch = Method::of("/grpc.health.v1.Health/Watch");
        let begin = |connection| Admission::begin(&bounds, connection, watch);
        let held: Vec<_> = (0..PROBES_MAX).map(|_| begin(&one).unwrap()).collect();
        assert!(begin(&one).is_err() && begin(&other).is_ok());
        drop(held);
        assert!(begin(&one).is_ok());
    }
}

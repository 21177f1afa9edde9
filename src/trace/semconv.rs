//! Names of spans and attributes: OpenTelemetry's semantic conventions 1.45 for RPC (stable) and for messaging (in
//! development). Where they have none, attributes are under `messaging.ringq.`, as they ask of a messaging system, and
//! for calls under `ringq.`.
//!
//! Backends that know only older conventions get their names, too, if `OTEL_SEMCONV_STABILITY_OPT_IN` contains
//! `rpc/dup` or `messaging/dup`, as the conventions define it.

use std::net::SocketAddr;

use opentelemetry::KeyValue;

use super::{CallEnd, SpanDelivery, SpanJob};

/// Schema of the names.
pub(super) const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.45.0";

const RPC_SYSTEM: &str = "rpc.system.name";
const RPC_METHOD: &str = "rpc.method";
const RPC_STATUS: &str = "rpc.status_code";
const ERROR_TYPE: &str = "error.type";
const PEER_ADDRESS: &str = "network.peer.address";
const PEER_PORT: &str = "network.peer.port";
const MESSAGING_SYSTEM: &str = "messaging.system";
const OPERATION_NAME: &str = "messaging.operation.name";
const DESTINATION: &str = "messaging.destination.name";
const PARTITION: &str = "messaging.destination.partition.id";
const MESSAGE_ID: &str = "messaging.message.id";
const BODY_SIZE: &str = "messaging.message.body.size";
const BATCH_COUNT: &str = "messaging.batch.message_count";
const CLIENT_ID: &str = "messaging.client.id";

const REQUEST_ID: &str = "ringq.request_id";
const REASON: &str = "ringq.error.reason";
const DELIVERY: &str = "messaging.ringq.delivery";
const ATTEMPT: &str = "messaging.ringq.attempt";
const LAG: &str = "messaging.ringq.lag_seconds";

/// Older names, of version 1.37 for RPC and 1.24 for messaging.
const OLD_RPC_SYSTEM: &str = "rpc.system";
const OLD_RPC_SERVICE: &str = "rpc.service";
const OLD_RPC_STATUS: &str = "rpc.grpc.status_code";
const OLD_OPERATION: &str = "messaging.operation";

/// Conventions that spans follow: the current ones, and on request older ones beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conventions {
    rpc_dup: bool,
    messaging_dup: bool,
}

// === impl Conventions ===

impl Conventions {
    /// Reads the value of `OTEL_SEMCONV_STABILITY_OPT_IN`, a list separated by commas. `rpc` and `messaging` select
    /// what is the default here; values for other kinds of instrumentation are not used.
    #[must_use]
    pub fn from_opt_in(list: &str) -> Conventions {
        let has = |name| list.split(',').any(|word| word.trim() == name);
        Conventions { rpc_dup: has("rpc/dup"), messaging_dup: has("messaging/dup") }
    }

    /// Attributes of a call, `method` as `ringq.v1.QueueService/Get`.
    pub(super) fn call(self, method: &'static str) -> Vec<KeyValue> {
        let mut attributes =
            vec![KeyValue::new(RPC_SYSTEM, "grpc"), KeyValue::new(RPC_METHOD, method)];
        if self.rpc_dup {
            // The old convention has the method in two parts; the new one owns the name `rpc.method`.
            let service = method.split_once('/').map_or(method, |(service, _)| service);
            attributes.push(KeyValue::new(OLD_RPC_SYSTEM, "grpc"));
            attributes.push(KeyValue::new(OLD_RPC_SERVICE, service));
        }
        attributes
    }

    /// Attributes of the end of a call.
    pub(super) fn end(self, end: &CallEnd<'_>) -> Vec<KeyValue> {
        let mut attributes = vec![KeyValue::new(RPC_STATUS, end.code)];
        if end.is_server_error {
            attributes.push(KeyValue::new(ERROR_TYPE, end.code));
        }
        if !end.reason.is_empty() {
            attributes.push(KeyValue::new(REASON, end.reason.to_owned()));
        }
        if self.rpc_dup {
            attributes.push(KeyValue::new(OLD_RPC_STATUS, i64::from(end.number)));
        }
        attributes
    }

    /// Attributes of a delivery.
    pub(super) fn delivery(self, delivery: &SpanDelivery<'_>) -> Vec<KeyValue> {
        let mut attributes = job(delivery.job);
        attributes.extend([
            KeyValue::new(MESSAGING_SYSTEM, "ringq"),
            KeyValue::new(OPERATION_NAME, "deliver"),
            KeyValue::new(BODY_SIZE, int(delivery.payload_bytes)),
            KeyValue::new(DELIVERY, i64::from(delivery.delivery)),
            KeyValue::new(ATTEMPT, i64::from(delivery.attempt)),
            KeyValue::new(LAG, delivery.lag.as_secs_f64()),
        ]);
        if !delivery.worker_id.is_empty() {
            attributes.push(KeyValue::new(CLIENT_ID, delivery.worker_id.to_owned()));
        }
        if self.messaging_dup {
            attributes.push(KeyValue::new(OLD_OPERATION, "deliver"));
        }
        attributes
    }
}

/// Name of the span of a delivery.
pub(super) fn deliver(topic: &str) -> String {
    format!("deliver {topic}")
}

/// Attributes of a job.
pub(super) fn job(job: SpanJob<'_>) -> Vec<KeyValue> {
    let named = [(DESTINATION, job.topic), (MESSAGE_ID, job.id), (PARTITION, job.shard)];
    let known = named.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(name, value)| KeyValue::new(name, value.to_owned())).collect()
}

/// Attribute of the number of jobs of a call.
pub(super) fn count(count: usize) -> KeyValue {
    KeyValue::new(BATCH_COUNT, int(count))
}

/// Attributes of a peer.
pub(super) fn peer(peer: SocketAddr) -> [KeyValue; 2] {
    let address = peer.ip().to_canonical().to_string();
    [KeyValue::new(PEER_ADDRESS, address), KeyValue::new(PEER_PORT, i64::from(peer.port()))]
}

/// Attribute of a request id.
pub(super) fn request_id(id: &str) -> KeyValue {
    KeyValue::new(REQUEST_ID, id.to_owned())
}

fn int(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

//! Source of the jobs of a worker: one of its streams, or its Pull calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use prost_types::Timestamp;
use ringq::pb::{Revocation, RevocationReason, StreamInfo, StreamRequest, StreamResponse};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::handle::{Gym, encoded, secs};
use super::jobs::{Job, unix_seconds};
use super::record::{Check, Failure};
use super::server::{OpenStream, StreamItem};

/// Interval of heartbeats that the server names, and keeps.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(300);
/// Time that leases of a broken stream are kept.
pub(crate) const ORPHAN_GRACE: Duration = Duration::from_secs(1);

/// Stream or Pull calls of a worker.
pub(crate) struct Source {
    gym: Gym,
    /// Request that opened it.
    pub(crate) request: StreamRequest,
    /// Time of the scenario at which it was opened.
    pub(crate) opened_at: Duration,
    stream: Option<ServedStream>,
}

struct ServedStream {
    id: String,
    messages: mpsc::Sender<StreamItem>,
    connection: CancellationToken,
    is_silent: Arc<AtomicBool>,
    heartbeats: AbortHandle,
}

// === impl Source ===

impl Source {
    pub(super) fn pulls(gym: Gym, call: super::call::Call) -> Source {
        let request = call.opening.clone().unwrap_or_default();
        Source { gym, request, opened_at: call.at, stream: None }
    }

    pub(super) fn stream(gym: Gym, opened: OpenStream) -> Source {
        let OpenStream { id, call, messages, connection } = opened;
        let request = call.opening.clone().unwrap_or_default();
        let is_silent = Arc::new(AtomicBool::new(true));
        let heartbeats = tokio::spawn(heartbeats(messages.clone(), Arc::clone(&is_silent)));
        let heartbeats = heartbeats.abort_handle();
        let stream = ServedStream { id, messages, connection, is_silent, heartbeats };
        Source { gym, request, opened_at: call.at, stream: Some(stream) }
    }

    /// Returns the id of the stream.
    pub(crate) fn id(&self) -> &str {
        self.stream.as_ref().map_or("", |stream| &stream.id)
    }

    /// Sends the first message, and heartbeats from now on.
    pub(crate) fn info(&self) -> Check<()> {
        self.info_at(unix_seconds(), &[])
    }

    /// Sends the first message with the clock of the server, and with unknown fields.
    pub(crate) fn info_at(&self, server_time: i64, unknown: &[u8]) -> Check<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let duration = |given| Some(prost_types::Duration::try_from(given).unwrap());
        let info = StreamInfo {
            stream_id: stream.id.clone(),
            replica: "gym".to_owned(),
            max_in_flight: self.request.max_in_flight.max(1),
            heartbeat_interval: duration(HEARTBEAT),
            server_time: Some(Timestamp { seconds: server_time, nanos: 0 }),
            orphan_grace: duration(ORPHAN_GRACE),
            lease_duration: self.request.lease_duration,
            max_batch: 64,
            max_in_flight_bytes: 64 << 20,
        };
        let message = StreamResponse { info: Some(info), ..Default::default() };
        self.send(StreamItem::Message(encoded(&message, unknown)))?;
        stream.is_silent.store(false, Ordering::SeqCst);
        self.gym.record().note(format!("{}: info", stream.id));
        Ok(())
    }

    /// Delivers jobs, in one message of a stream.
    pub(crate) fn deliver(&self, jobs: impl IntoIterator<Item = Job>) -> Check<()> {
        let jobs: Vec<Job> = jobs.into_iter().collect();
        if self.stream.is_none() {
            self.gym.offer(jobs);
            return Ok(());
        }
        let mut message = Vec::new();
        let mut ids = Vec::new();
        for job in &jobs {
            let delivery = self.gym.server().deliver(job, &self.request);
            ids.push(delivery.id.clone());
            push_delivery(&mut message, delivery.encode_to_vec(), &job.unknown);
        }
        let shown: Vec<_> = ids.iter().take(8).map(String::as_str).collect();
        let more = if ids.len() > 8 { ", …" } else { "" };
        self.gym.record().note(format!("{}: deliver [{}{more}]", self.id(), shown.join(", ")));
        self.send(StreamItem::Message(message.into()))
    }

    /// Sends the last delivery of a job once more.
    pub(crate) fn deliver_again(&self, id: &str) -> Check<()> {
        let delivery = self.gym.read(|log| log.delivered.get(id).map(|(_, it)| it.clone()));
        let mut message = Vec::new();
        push_delivery(&mut message, delivery.unwrap_or_default().encode_to_vec(), &[]);
        self.gym.record().note(format!("{}: deliver [{id}] again", self.id()));
        self.send(StreamItem::Message(message.into()))
    }

    /// Takes a job back.
    pub(crate) fn revoke(&self, id: &str) -> Check<()> {
        self.gym.lose(id);
        let receipt = self.gym.read(|log| log.delivered.get(id).map(|(_, it)| it.receipt.clone()));
        let reason = RevocationReason::Deleted.into();
        self.revoke_receipt(&receipt.unwrap_or_default(), reason)
    }

    /// Sends a revocation of any receipt for any reason.
    pub(crate) fn revoke_receipt(&self, receipt: &str, reason: i32) -> Check<()> {
        let revocation = Revocation { receipt: receipt.to_owned(), reason };
        let message = StreamResponse { revocations: vec![revocation], ..Default::default() };
        self.gym.record().note(format!("{}: revoke {receipt}", self.id()));
        self.send(StreamItem::Message(encoded(&message, &[])))
    }

    pub(crate) fn draining(&self) -> Check<()> {
        let message = StreamResponse { draining: true, ..Default::default() };
        self.gym.record().note(format!("{}: draining", self.id()));
        self.send(StreamItem::Message(encoded(&message, &[])))
    }

    /// Sends encoded fields as a message.
    pub(crate) fn raw(&self, fields: Vec<u8>) -> Check<()> {
        self.send(StreamItem::Message(fields.into()))
    }

    /// Ends the stream with OK.
    pub(crate) fn end_ok(&self) -> Check<()> {
        self.gym.record().note(format!("{}: ends with OK", self.id()));
        self.stop_heartbeats();
        self.send(StreamItem::End)
    }

    /// Ends the stream with an error.
    pub(crate) fn fail(&self, status: Status) -> Check<()> {
        self.gym.record().note(format!("{}: fails, {:?}", self.id(), status.code()));
        self.stop_heartbeats();
        self.send(StreamItem::Fail(status))
    }

    /// Closes the connection of the stream, in the middle of all calls on it.
    pub(crate) fn cut(&self) {
        self.gym.record().note(format!("{}: its connection is cut", self.id()));
        self.stop_heartbeats();
        if let Some(stream) = &self.stream {
            stream.connection.cancel();
        }
    }

    /// Sends no more heartbeats; the connection stays open.
    pub(crate) fn fall_silent(&self) {
        self.gym.record().note(format!("{}: no more heartbeats", self.id()));
        self.stop_heartbeats();
    }

    /// Returns whether the worker has ended the stream, and at which time.
    pub(crate) fn ended_at(&self) -> Option<Duration> {
        let ended = |log: &super::record::Log| {
            log.cancelled.iter().find(|(id, _)| id == self.id()).map(|(_, at)| *at)
        };
        self.gym.read(ended)
    }

    fn stop_heartbeats(&self) {
        if let Some(stream) = &self.stream {
            stream.heartbeats.abort();
        }
    }

    fn send(&self, item: StreamItem) -> Check<()> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let ended = |_| Failure(format!("{} is still open: the worker has ended it", stream.id));
        stream.messages.try_send(item).map_err(ended)
    }
}

async fn heartbeats(messages: mpsc::Sender<StreamItem>, is_silent: Arc<AtomicBool>) {
    loop {
        tokio::time::sleep(HEARTBEAT).await;
        let message = StreamItem::Message(encoded(&StreamResponse::default(), &[]));
        if !is_silent.load(Ordering::SeqCst) && messages.send(message).await.is_err() {
            return;
        }
    }
}

/// Appends a delivery to an encoded message.
fn push_delivery(message: &mut Vec<u8>, mut delivery: Vec<u8>, unknown: &[u8]) {
    delivery.extend_from_slice(unknown);
    encode_key(1, WireType::LengthDelimited, message);
    encode_varint(delivery.len() as u64, message);
    message.extend_from_slice(&delivery);
}

/// Waits, where the scenario needs that nothing happens for a time that no event ends.
pub(crate) async fn pause(seconds: f64) {
    tokio::time::sleep(secs(seconds)).await;
}

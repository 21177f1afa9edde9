//! Calls of a worker or producer, read from their messages.

use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use ringq::pb::{
    AckRequest, BatchEnqueueRequest, ExtendRequest, NackAction, NackRequest, Payload, PullRequest,
    StreamRequest,
};
use tonic::Status;

/// Method of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Method {
    Stream,
    Pull,
    Ack,
    Nack,
    Extend,
    BatchEnqueue,
}

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    /// Time of the scenario at which it arrived.
    pub(crate) at: Duration,
    /// Position among the calls of its method, from 1.
    pub(crate) number: usize,
    /// Metadata `authorization`.
    pub(crate) authorization: Option<String>,
    /// Items of Ack, Nack and Extend.
    pub(crate) items: Vec<Item>,
    /// Request of Stream, or that of Pull in the same form.
    pub(crate) opening: Option<StreamRequest>,
    /// Longest wait of a Pull.
    pub(crate) wait: Duration,
    /// Request of BatchEnqueue.
    pub(crate) batch: Option<BatchEnqueueRequest>,
}

/// Item of Ack, Nack or Extend.
#[derive(Clone, Debug, Default)]
pub(crate) struct Item {
    pub(crate) receipt: String,
    /// Id of its job; the receipt if that was not given out here.
    pub(crate) id: String,
    pub(crate) result: Option<String>,
    pub(crate) checkpoint: Option<String>,
    pub(crate) lease: Option<Duration>,
    /// Action of a Nack.
    pub(crate) action: Option<NackAction>,
    pub(crate) error: String,
}

// === impl Method ===

impl Method {
    pub(crate) fn from_name(name: &str) -> Option<Method> {
        Some(match name {
            "Stream" => Method::Stream,
            "Pull" => Method::Pull,
            "Ack" => Method::Ack,
            "Nack" => Method::Nack,
            "Extend" => Method::Extend,
            "BatchEnqueue" => Method::BatchEnqueue,
            _ => return None,
        })
    }
}

// === impl Call ===

impl Call {
    /// Reads the message of a call.
    pub(crate) fn read(method: Method, message: Bytes) -> Result<Call, Status> {
        let mut call = Call {
            method,
            at: Duration::ZERO,
            number: 0,
            authorization: None,
            items: Vec::new(),
            opening: None,
            wait: Duration::ZERO,
            batch: None,
        };
        match method {
            Method::Stream => call.opening = Some(decode(message)?),
            Method::Pull => {
                let pull: PullRequest = decode(message)?;
                call.wait = duration(pull.wait).unwrap_or(Duration::from_secs(10));
                call.opening = Some(StreamRequest {
                    topics: pull.topics,
                    max_in_flight: pull.max_jobs.max(1),
                    worker_id: pull.worker_id,
                    lease_duration: pull.lease_duration,
                    ..Default::default()
                });
            }
            Method::Ack => {
                let items = decode::<AckRequest>(message)?.items.into_iter();
                let item = |it: ringq::pb::AckItem| Item {
                    result: text(it.result),
                    ..Item::of(it.receipt)
                };
                call.items = items.map(item).collect();
            }
            Method::Nack => {
                let items = decode::<NackRequest>(message)?.items.into_iter();
                let item = |it: ringq::pb::NackItem| Item {
                    action: Some(it.action()),
                    error: it.error.clone(),
                    ..Item::of(it.receipt)
                };
                call.items = items.map(item).collect();
            }
            Method::Extend => {
                let items = decode::<ExtendRequest>(message)?.items.into_iter();
                let item = |it: ringq::pb::ExtendItem| Item {
                    checkpoint: text(it.checkpoint),
                    lease: duration(it.lease_duration),
                    ..Item::of(it.receipt)
                };
                call.items = items.map(item).collect();
            }
            Method::BatchEnqueue => call.batch = Some(decode(message)?),
        }
        Ok(call)
    }

    /// Returns the first item of a job.
    pub(crate) fn item(&self, id: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.id == id)
    }

    /// Returns the ids of the jobs of a BatchEnqueue.
    pub(crate) fn job_ids(&self) -> Vec<&str> {
        self.batch.iter().flat_map(|batch| batch.jobs.iter().map(|job| job.id.as_str())).collect()
    }

    /// Returns a line for people.
    pub(crate) fn text(&self) -> String {
        let Call { method, number, .. } = self;
        if let Some(opening) = &self.opening {
            let StreamRequest { worker_id, max_in_flight, continues_stream_id, .. } = opening;
            let continues = match continues_stream_id.as_str() {
                "" => String::new(),
                former => format!(", continues {former}"),
            };
            return format!(
                "{method:?} #{number} by {worker_id:?}, credit {max_in_flight}{continues}"
            );
        }
        if let Some(batch) = &self.batch {
            let ids = shortened(self.job_ids().into_iter().map(str::to_owned).collect());
            return format!("{method:?} #{number} [{ids}], request_id {:?}", batch.request_id);
        }
        let items = self.items.iter().map(Item::text).collect();
        format!("{method:?} #{number} [{}]", shortened(items))
    }
}

// === impl Item ===

impl Item {
    fn of(receipt: String) -> Item {
        // Receipts are made by `jobs::receipt`.
        let id = receipt.rsplit_once('~').map_or(receipt.as_str(), |(id, _)| id).to_owned();
        Item { receipt, id, ..Item::default() }
    }

    fn text(&self) -> String {
        let mut text = self.id.clone();
        if let Some(checkpoint) = &self.checkpoint {
            text += &format!(" checkpoint {checkpoint}");
        }
        if let Some(action) = self.action {
            text += &format!(" {} {:?}", action.as_str_name(), self.error);
        }
        text
    }
}

fn decode<M: Message + Default>(message: Bytes) -> Result<M, Status> {
    M::decode(message).map_err(|error| Status::invalid_argument(error.to_string()))
}

/// Returns the duration of a message.
pub(crate) fn duration(given: Option<prost_types::Duration>) -> Option<Duration> {
    given.and_then(|given| Duration::try_from(given).ok())
}

fn text(payload: Option<Payload>) -> Option<String> {
    payload.map(|payload| String::from_utf8_lossy(payload.bytes()).into_owned())
}

/// Joins names, the first few of many.
fn shortened(names: Vec<String>) -> String {
    const SHOWN: usize = 8;
    let rest = names.len().saturating_sub(SHOWN);
    let shown = names.into_iter().take(SHOWN).collect::<Vec<_>>().join(", ");
    if rest > 0 { format!("{shown} and {rest} more") } else { shown }
}

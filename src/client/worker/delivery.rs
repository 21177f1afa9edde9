//! Input of a handler, and its outcome.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use tokio::sync::mpsc;

use super::super::{Client, Error, call};
use super::leases::JobSlot;
use crate::pb::payload::Kind;
use crate::pb::{self, ExtendItem, ExtendRequest, JobSpec, Payload, SettleError};

/// A job leased to this worker; its fields are those of [`pb::Delivery`]. One of them is
/// [`fence`](pb::Delivery::fence): with it a database can reject the writes of a worker whose lease has ended
/// unnoticed.
#[derive(Clone, Debug)]
pub struct Delivery {
    delivery: pb::Delivery,
    client: Client,
    session: SessionHandle,
}

/// Access of a handler to the session of its worker.
#[derive(Clone, Debug)]
pub(super) struct SessionHandle {
    pub(super) slot: JobSlot,
    /// Takes jobs whose lease has ended.
    pub(super) lost: mpsc::Sender<JobSlot>,
    pub(super) call_timeout: Duration,
}

/// Outcome of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The job is done.
    Ack {
        /// Result, kept with the record for its retention. One that the server refuses, or a proxy for a whole lease, is left
        /// out with a warning: finished work does not run again for it.
        result: Option<Payload>,
        /// Follow-up jobs, at most 16, written together with the Ack.
        enqueue: Vec<JobSpec>,
    },
    /// The attempt failed: it is counted, and the job is retried until its attempts are used up.
    Retry {
        /// Error text, at most 4 KiB; longer text is cut.
        error: String,
        /// Delay instead of the backoff of the policy.
        delay: Option<Duration>,
    },
    /// The job was not attempted: not counted.
    Release {
        /// Reason, at most 4 KiB; longer text is cut.
        error: String,
        /// Delay. Default: none at first, then 1 s, 2 s, 4 s and so on up to 60 s.
        delay: Option<Duration>,
    },
    /// The job can never succeed: it becomes DEAD.
    DeadLetter {
        /// Reason, at most 4 KiB; longer text is cut.
        error: String,
    },
}

// === impl Delivery ===

impl Delivery {
    pub(super) fn new(delivery: pb::Delivery, client: Client, session: SessionHandle) -> Delivery {
        Delivery { delivery, client, session }
    }

    /// Returns the payload as bytes, of either kind; empty without a payload.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.delivery.payload.as_ref().map(Payload::bytes).unwrap_or_default()
    }

    /// Returns the payload as text; `None` if it is data that is not UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self.delivery.payload.as_ref().and_then(|payload| payload.kind.as_ref()) {
            Some(Kind::Text(text)) => Some(text),
            Some(Kind::Data(data)) => std::str::from_utf8(data).ok(),
            None => Some(""),
        }
    }

    /// Returns the checkpoint that an earlier delivery of this job stored with [`Delivery::save`], as bytes; empty
    /// without one.
    #[must_use]
    pub fn saved(&self) -> &[u8] {
        self.delivery.checkpoint.as_ref().map(Payload::bytes).unwrap_or_default()
    }

    /// Stores a checkpoint of at most 64 KiB, which replaces the last one: the next delivery contains it
    /// ([`Delivery::saved`], [`pb::Delivery::checkpoint`]) unless this one is acknowledged. A payload without bytes
    /// clears it. It extends the lease too, so an error may mean that the lease was revoked.
    ///
    /// # Errors
    /// Fails if the lease has ended, the store is full, or the server is unreachable. After the first the worker drops
    /// the handler's future, and settles nothing for the job.
    pub async fn save(&self, checkpoint: Payload) -> Result<(), Error> {
        self.extend(ExtendItem { checkpoint: Some(checkpoint), ..Default::default() }).await
    }

    /// Stores a progress note of at most 1 KiB for operators. It extends the lease too, so an error may mean that the
    /// lease was revoked.
    ///
    /// # Errors
    /// Fails if the lease has ended, or the server is unreachable.
    pub async fn progress(&self, note: impl Into<String>) -> Result<(), Error> {
        self.extend(ExtendItem { progress: note.into(), ..Default::default() }).await
    }

    async fn extend(&self, item: ExtendItem) -> Result<(), Error> {
        let item = ExtendItem { receipt: self.delivery.receipt.clone(), ..item };
        let (mut queue, request) = (self.client.queue(), ExtendRequest { items: vec![item] });
        let limit = self.session.call_timeout;
        let answer =
            call::call_with_timeout(limit, 0, request, |request| queue.extend(request)).await?;
        let Some(failure) = answer.failures.into_iter().next() else { return Ok(()) };
        if matches!(failure.error(), SettleError::Stale | SettleError::NotFound) {
            // A session that is over needs no notice.
            let _ = self.session.lost.send(self.session.slot).await;
        }
        Err(failure.into())
    }

    /// Returns the message as received.
    #[must_use]
    pub fn into_inner(self) -> pb::Delivery {
        self.delivery
    }
}

impl Deref for Delivery {
    type Target = pb::Delivery;

    fn deref(&self) -> &pb::Delivery {
        &self.delivery
    }
}

// === impl Outcome ===

impl Outcome {
    /// Creates an Ack without a result.
    #[must_use]
    pub fn ack() -> Outcome {
        Outcome::Ack { result: None, enqueue: Vec::new() }
    }

    /// Creates a Nack with RETRY.
    #[must_use]
    pub fn retry(error: impl fmt::Display) -> Outcome {
        Outcome::Retry { error: error.to_string(), delay: None }
    }

    /// Creates a Nack with RELEASE.
    #[must_use]
    pub fn release() -> Outcome {
        Outcome::Release { error: String::new(), delay: None }
    }

    /// Creates a Nack with DEAD_LETTER.
    #[must_use]
    pub fn dead_letter(error: impl fmt::Display) -> Outcome {
        Outcome::DeadLetter { error: error.to_string() }
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Outcome {
        Outcome::ack()
    }
}

impl<E: fmt::Display> From<Result<(), E>> for Outcome {
    /// Converts the result of a handler. The error is formatted with `{:#}`: types such as `anyhow`'s then add its
    /// causes.
    fn from(result: Result<(), E>) -> Outcome {
        match result {
            Ok(()) => Outcome::ack(),
            Err(error) => Outcome::retry(format_args!("{error:#}")),
        }
    }
}

//! What a handler gets and what it answers.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use super::super::{Client, Error, call};
use crate::pb::payload::Kind;
use crate::pb::{self, ExtendItem, ExtendRequest, JobSpec, Payload};

/// A note on the progress or a checkpoint is given up after that.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A job in the hands of this worker; its fields are those of [`pb::Delivery`]. One of them is
/// [`fence`](pb::Delivery::fence), by which a database refuses a worker that has lost its lease without knowing.
#[derive(Clone, Debug)]
pub struct Delivery {
    delivery: pb::Delivery,
    client: Client,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is done.
    Ack {
        /// Kept with the record for its retention.
        result: Option<Payload>,
        /// Follow-up jobs, at most 16, written together with the Ack.
        enqueue: Vec<JobSpec>,
    },
    /// It failed: counted, and tried again until its attempts are used up.
    Retry {
        /// What went wrong, at most 4 KiB; longer text is cut.
        error: String,
        /// Instead of the wait of its policy.
        delay: Option<Duration>,
    },
    /// It was not tried: not counted.
    Release {
        /// Why, at most 4 KiB; longer text is cut.
        error: String,
        /// Default: nothing at first, then 1 s, 2 s, 4 s and so on up to 60 s.
        delay: Option<Duration>,
    },
    /// It can never succeed: dead now.
    DeadLetter {
        /// Why, at most 4 KiB; longer text is cut.
        error: String,
    },
}

// === impl Delivery ===

impl Delivery {
    pub(super) fn new(delivery: pb::Delivery, client: Client) -> Delivery {
        Delivery { delivery, client }
    }

    /// The payload as bytes, of either kind; empty without one.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.delivery.payload.as_ref().map(Payload::bytes).unwrap_or_default()
    }

    /// The payload as text; none if it is data that is not UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self.delivery.payload.as_ref().and_then(|payload| payload.kind.as_ref()) {
            Some(Kind::Text(text)) => Some(text),
            Some(Kind::Data(data)) => std::str::from_utf8(data).ok(),
            None => Some(""),
        }
    }

    /// What an earlier delivery of this job has kept with [`Delivery::save`], as bytes; empty without it.
    #[must_use]
    pub fn saved(&self) -> &[u8] {
        self.delivery.checkpoint.as_ref().map(Payload::bytes).unwrap_or_default()
    }

    /// Keeps what the job has reached, at most 64 KiB, instead of what was kept before: the next delivery brings it
    /// along ([`Delivery::saved`], [`pb::Delivery::checkpoint`]) unless this one is acknowledged. A payload without bytes
    /// clears it. Extends the lease, too, so an error may mean that the job was taken away.
    ///
    /// # Errors
    /// The job is no longer this worker's, the store is full, or the server could not be reached. The first means: stop.
    pub async fn save(&self, checkpoint: Payload) -> Result<(), Error> {
        self.extend(ExtendItem { checkpoint: Some(checkpoint), ..Default::default() }).await
    }

    /// Leaves a note on the progress, at most 1 KiB, for operators to see. Extends the lease, too, so
    /// an error may mean that the job was taken away.
    ///
    /// # Errors
    /// The job is no longer this worker's, or the server could not be reached.
    pub async fn progress(&self, note: impl Into<String>) -> Result<(), Error> {
        self.extend(ExtendItem { progress: note.into(), ..Default::default() }).await
    }

    async fn extend(&self, item: ExtendItem) -> Result<(), Error> {
        let item = ExtendItem { receipt: self.delivery.receipt.clone(), ..item };
        let (mut queue, request) = (self.client.queue(), ExtendRequest { items: vec![item] });
        let answer =
            call::call_with_timeout(CALL_TIMEOUT, request, |request| queue.extend(request)).await?;
        match answer.failures.into_iter().next() {
            Some(failure) => Err(failure.into()),
            None => Ok(()),
        }
    }

    /// The message as it came.
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
    /// It is done, and nothing needs to be kept.
    #[must_use]
    pub fn ack() -> Outcome {
        Outcome::Ack { result: None, enqueue: Vec::new() }
    }

    /// It failed.
    #[must_use]
    pub fn retry(error: impl fmt::Display) -> Outcome {
        Outcome::Retry { error: error.to_string(), delay: None }
    }

    /// It was not tried.
    #[must_use]
    pub fn release() -> Outcome {
        Outcome::Release { error: String::new(), delay: None }
    }

    /// It can never succeed.
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
    /// An error is shown with its causes where its type can do that by `{:#}`, as `anyhow`'s can.
    fn from(result: Result<(), E>) -> Outcome {
        match result {
            Ok(()) => Outcome::ack(),
            Err(error) => Outcome::retry(format_args!("{error:#}")),
        }
    }
}

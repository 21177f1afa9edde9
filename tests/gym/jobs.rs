//! Jobs for a worker, in the form of the demo handler.

use std::time::Duration;

use prost_types::Timestamp;
use ringq::pb::{Delivery, Payload};

/// First topic of each worker.
pub(crate) const TOPIC: &str = "gym.a";

/// Job to deliver.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) id: String,
    /// Its own lease. Default: that of the stream.
    pub(crate) lease: Option<Duration>,
    /// Encoded fields that follow those of the contract.
    pub(crate) unknown: Vec<u8>,
    topic: String,
    payload: Option<Payload>,
    checkpoint: Option<Payload>,
    attempt: i32,
    /// Time from now at which it is due.
    due_in: i64,
}

/// Creates a job without a payload: 0 steps.
pub(crate) fn job(id: impl Into<String>) -> Job {
    Job {
        id: id.into(),
        lease: None,
        unknown: Vec::new(),
        topic: TOPIC.to_owned(),
        payload: None,
        checkpoint: None,
        attempt: 1,
        due_in: 0,
    }
}

/// Returns the trace id of a job, which its header has.
pub(crate) fn trace_id(id: &str) -> String {
    let digits: String = id.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{digits:0>32.32}")
}

// === impl Job ===

impl Job {
    /// Sets the number of steps and the milliseconds of each.
    pub(crate) fn steps(self, steps: u32, step_ms: u32) -> Job {
        self.text(format!(r#"{{"steps":{steps},"step_ms":{step_ms}}}"#))
    }

    pub(crate) fn text(mut self, text: impl Into<String>) -> Job {
        self.payload = Some(Payload::text(text));
        self
    }

    pub(crate) fn data(mut self, data: &str) -> Job {
        self.payload = Some(Payload::data(data.to_owned()));
        self
    }

    pub(crate) fn checkpoint(mut self, text: &str) -> Job {
        self.checkpoint = Some(Payload::text(text));
        self
    }

    pub(crate) fn topic(mut self, topic: &str) -> Job {
        self.topic = topic.to_owned();
        self
    }

    pub(crate) fn attempt(mut self, attempt: i32) -> Job {
        self.attempt = attempt;
        self
    }

    pub(crate) fn lease(mut self, seconds: f64) -> Job {
        self.lease = Some(Duration::from_secs_f64(seconds));
        self
    }

    pub(crate) fn due_in(mut self, seconds: i64) -> Job {
        self.due_in = seconds;
        self
    }

    pub(crate) fn unknown(mut self, fields: Vec<u8>) -> Job {
        self.unknown = fields;
        self
    }

    /// Builds the delivery of this number.
    pub(crate) fn delivery(&self, number: usize, lease: Duration) -> Delivery {
        let number = i64::try_from(number).unwrap();
        let time = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let due = unix_seconds() + self.due_in;
        let traceparent = format!("00-{}-00f067aa0ba902b7-01", trace_id(&self.id));
        Delivery {
            // `call::Item` reads the id of the job from it.
            receipt: format!("{}~{number}", self.id),
            topic: self.topic.clone(),
            id: self.id.clone(),
            payload: self.payload.clone(),
            headers: [("traceparent".to_owned(), traceparent)].into(),
            attempt: self.attempt,
            max_attempts: 25,
            lease_duration: Some(prost_types::Duration::try_from(lease).unwrap()),
            due_time: time(due),
            create_time: time(due - 1),
            delivery: self.attempt,
            fence: 1_000_000 + number,
            checkpoint: self.checkpoint.clone(),
            ..Default::default()
        }
    }
}

/// Returns the time of the wall clock.
pub(crate) fn unix_seconds() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_secs()).unwrap()
}

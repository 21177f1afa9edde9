//! Jobs in the answer of a Pull, until its last frame is taken.

use parking_lot::Mutex;

use crate::dispatch::PullHandover;
use crate::trace::DeliverySpan;

/// Jobs that count as delivered, and whose spans are recorded, once the answer was sent. If they are dropped before,
/// they go back.
#[derive(Debug)]
pub(super) struct PulledJobs {
    handover: PullHandover,
    spans: Mutex<Vec<DeliverySpan>>,
}

// === impl PulledJobs ===

impl PulledJobs {
    /// Creates the jobs of an answer that is not sent yet.
    pub(super) fn new(handover: PullHandover, spans: Vec<DeliverySpan>) -> PulledJobs {
        PulledJobs { handover, spans: Mutex::new(spans) }
    }

    /// Confirms that the answer was sent.
    pub(super) fn confirm(&self) {
        self.handover.confirm();
        let spans = std::mem::take(&mut *self.spans.lock());
        spans.into_iter().for_each(DeliverySpan::record);
    }
}

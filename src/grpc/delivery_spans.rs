//! Spans of deliveries, from the jobs that are handed over.

use crate::dispatch::JobDelivery;
use crate::trace::{DeliverySpan, SpanDelivery, SpanJob, TraceHeaders, Tracer};

/// Returns the span of a delivery to `worker_id`, if the job has a trace and the tracer is on.
pub(super) fn delivery_span(
    tracer: &Tracer,
    delivery: &JobDelivery,
    worker_id: &str,
) -> Option<DeliverySpan> {
    if !tracer.is_on() {
        return None;
    }
    let JobDelivery { receipt, job, lag, .. } = delivery;
    let headers = &job.spec.headers;
    let header = |name| headers.iter().find(|(key, _)| key == name).map(|(_, value)| &**value);
    tracer.delivery(&SpanDelivery {
        context: TraceHeaders::read(header)?,
        job: SpanJob {
            topic: job.key.topic.as_str(),
            id: job.key.id.as_str(),
            shard: receipt.shard.as_str(),
        },
        worker_id,
        delivery: job.deliveries.saturating_add(1),
        attempt: job.failures.saturating_add(1),
        lag: *lag,
        payload_bytes: job.spec.payload.as_ref().map_or(0, |payload| payload.body.len()),
    })
}

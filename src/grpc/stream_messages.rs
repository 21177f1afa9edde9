//! Messages of a stream: the batches of its outbox; the first one has the settings in effect.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use pin_project_lite::pin_project;
use tonic::Status;

use crate::auth::StreamSlot;
use crate::contract::delivery::to_stream_response;
use crate::dispatch::{JobDelivery, Outbox, StreamBatch};
use crate::pb;
use crate::scheduler::Core;
use crate::trace::{DeliverySpan, Tracer};

use super::delivery_spans::delivery_span;

pin_project! {
    /// Messages of one stream. If they are dropped before their end, the stream is broken.
    pub(super) struct StreamMessages {
        #[pin]
        outbox: Outbox,
        core: Core,
        tracer: Tracer,
        worker_id: Arc<str>,
        info: Option<pb::StreamInfo>,
        slot: Option<StreamSlot>,
    }
}

// === impl StreamMessages ===

impl StreamMessages {
    /// Creates the messages of a stream that was just opened, and that holds `slot` until its end.
    pub(super) fn new(
        outbox: Outbox,
        core: Core,
        (tracer, worker_id): (Tracer, Arc<str>),
        info: pb::StreamInfo,
        slot: Option<StreamSlot>,
    ) -> StreamMessages {
        StreamMessages { outbox, core, tracer, worker_id, info: Some(info), slot }
    }
}

impl Stream for StreamMessages {
    type Item = Result<pb::StreamResponse, Status>;

    /// Returns the first message at once, with the jobs that are ready: the worker receives its settings without
    /// waiting for a job.
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.project();
        let batch = match (this.outbox.poll_next(cx), this.info.is_some()) {
            (Poll::Ready(Some(batch)), _) => batch,
            (Poll::Pending | Poll::Ready(None), true) => StreamBatch::default(),
            (Poll::Ready(None), false) => return Poll::Ready(None),
            (Poll::Pending, false) => return Poll::Pending,
        };
        let span = |job: &JobDelivery| delivery_span(this.tracer, job, this.worker_id);
        batch.deliveries.iter().filter_map(span).for_each(DeliverySpan::record);
        let message = to_stream_response(
            batch,
            |topic, over| this.core.retry_policy(topic, over),
            |shard| this.core.receipt_key(shard),
        );
        Poll::Ready(Some(Ok(pb::StreamResponse { info: this.info.take(), ..message })))
    }
}

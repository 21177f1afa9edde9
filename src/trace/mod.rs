//! Spans of this server, for OpenTelemetry: one of kind SERVER for each call, and `deliver {topic}` for each delivery of
//! a job that has a trace. `semconv` has the names of spans and attributes, `context` reads and writes W3C contexts.
//!
//! ```text
//! producer: send orders ─▶ ringq: ringq.v1.QueueService/Enqueue      (child of the metadata `traceparent`)
//!                   │
//!                   ├─────▶ ringq: deliver orders, delivery 1        (child of the job's header `traceparent`)
//!                   ├ ─ ─ ▶ worker: process orders ─▶ worker: nack orders ─▶ ringq: ringq.v1.QueueService/Nack
//!                   ├─────▶ ringq: deliver orders, delivery 2
//!                   └ ─ ─ ▶ worker: process orders ─▶ …              (a link, or a child if the worker chooses so)
//! ```
//!
//! Spans contain names, ids, counts and sizes. No payload, header, checkpoint, result or error text of a job is in one.
//! Without a [`Tracer`] that is on, and for a call that is not sampled, no span is built and nothing is formatted.

mod context;
mod semconv;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _,
    TracerProvider as _,
};
use opentelemetry::{Context, ContextGuard, InstrumentationScope, TraceId};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

pub use context::{TRACEPARENT, TRACESTATE, TraceHeaders};
pub use semconv::Conventions;

/// Creates the spans of one server. Cloning is cheap. The default is off.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<TracerInner>>);

#[derive(Debug)]
struct TracerInner {
    tracer: SdkTracer,
    conventions: Conventions,
}

/// Span of a call that is recorded. Cloning shares it. It ends with [`CallSpan::end`], or when the last clone is
/// dropped.
#[derive(Clone, Debug)]
pub struct CallSpan {
    context: Context,
    conventions: Conventions,
}

/// Makes a span the current one until it is dropped.
pub struct ScopeGuard {
    _guard: ContextGuard,
}

/// Job of a call.
#[derive(Clone, Copy, Debug)]
pub struct SpanJob<'a> {
    /// Topic of the job.
    pub topic: &'a str,
    /// Id of the job; empty if it is not known.
    pub id: &'a str,
    /// Name of the shard that stores the job; empty if it is not known.
    pub shard: &'a str,
}

/// End of a call.
#[derive(Clone, Copy, Debug)]
pub struct CallEnd<'a> {
    /// Name of the gRPC code, as `NOT_FOUND`.
    pub code: &'static str,
    /// Number of the gRPC code.
    pub number: i32,
    /// Stable reason of the error; empty without one.
    pub reason: &'a str,
    /// True if the server is at fault. Errors of its clients do not count as errors of its spans.
    pub is_server_error: bool,
}

/// Delivery of one job.
#[derive(Clone, Copy, Debug)]
pub struct SpanDelivery<'a> {
    /// Trace context in the headers of the job.
    pub context: TraceHeaders<'a>,
    /// The job.
    pub job: SpanJob<'a>,
    /// Worker that receives the job; empty if it gave no id.
    pub worker_id: &'a str,
    /// Number of the delivery, from 1.
    pub delivery: u32,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Time since the job was due.
    pub lag: Duration,
    /// Size of the payload in bytes.
    pub payload_bytes: usize,
}

/// Span of a delivery that may still fail.
#[derive(Debug)]
pub struct DeliverySpan {
    tracer: Arc<TracerInner>,
    builder: SpanBuilder,
    parent: Context,
}

// === impl Tracer ===

impl Tracer {
    /// Creates a tracer whose spans go to `provider`.
    #[must_use]
    pub fn new(provider: &SdkTracerProvider, conventions: Conventions) -> Tracer {
        let scope = InstrumentationScope::builder("ringq")
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(semconv::SCHEMA_URL)
            .build();
        let tracer = provider.tracer_with_scope(scope);
        Tracer(Some(Arc::new(TracerInner { tracer, conventions })))
    }

    /// Returns whether spans may be recorded.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Starts the span of a call of `method`, as `ringq.v1.QueueService/Get`; `caller`: the trace context of its
    /// metadata. Returns `None` if it is not recorded.
    #[must_use]
    pub fn start_call(
        &self,
        method: &'static str,
        caller: Option<TraceHeaders<'_>>,
    ) -> Option<CallSpan> {
        let TracerInner { tracer, conventions } = &**self.0.as_ref()?;
        let parent = caller.map_or_else(Context::new, TraceHeaders::context);
        let builder = SpanBuilder::from_name(method).with_kind(SpanKind::Server);
        let span = tracer.build_with_context(builder, &parent);
        if !span.is_recording() {
            return None;
        }
        let span = CallSpan { context: parent.with_span(span), conventions: *conventions };
        span.context.span().set_attributes(conventions.call(method));
        Some(span)
    }

    /// Creates the span of a delivery, which lasts from the time that the job was due until now. Returns `None` if the
    /// tracer is off, or if the trace of the job is not sampled.
    #[must_use]
    pub fn delivery(&self, delivery: &SpanDelivery<'_>) -> Option<DeliverySpan> {
        let tracer = self.0.as_ref()?;
        let parent = delivery.context.context();
        if !parent.span().span_context().is_sampled() {
            return None;
        }
        let start = opentelemetry::time::now().checked_sub(delivery.lag);
        let builder = SpanBuilder::from_name(semconv::deliver(delivery.job.topic))
            .with_kind(SpanKind::Internal)
            .with_start_time(start.unwrap_or_else(opentelemetry::time::now))
            .with_attributes(tracer.conventions.delivery(delivery));
        Some(DeliverySpan { tracer: Arc::clone(tracer), builder, parent })
    }
}

// === impl CallSpan ===

impl CallSpan {
    /// Makes the span the current one of this thread, so that log records are exported with its ids.
    #[must_use]
    pub fn enter(&self) -> ScopeGuard {
        ScopeGuard { _guard: self.context.clone().attach() }
    }

    /// Adds the address and port of the client, or of the proxy in front of this server.
    pub fn set_peer(&self, peer: std::net::SocketAddr) {
        self.context.span().set_attributes(semconv::peer(peer));
    }

    /// Adds the request id, which is in the log lines of the call.
    pub fn set_request_id(&self, id: &str) {
        self.context.span().set_attribute(semconv::request_id(id));
    }

    /// Adds the job of the call.
    pub fn set_job(&self, job: SpanJob<'_>) {
        self.context.span().set_attributes(semconv::job(job));
    }

    /// Adds the number of jobs of a call.
    pub fn set_jobs(&self, count: usize) {
        self.context.span().set_attribute(semconv::count(count));
    }

    /// Returns the id of the trace.
    #[must_use]
    pub fn trace_id(&self) -> TraceId {
        self.context.span().span_context().trace_id()
    }

    /// Returns the context of the span as a `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> String {
        context::traceparent(self.context.span().span_context())
    }

    /// Ends the span.
    pub fn end(&self, end: &CallEnd<'_>) {
        let span = self.context.span();
        span.set_attributes(self.conventions.end(end));
        if end.is_server_error {
            span.set_status(Status::error(end.reason.to_owned()));
        }
        span.end();
    }
}

// === impl DeliverySpan ===

impl DeliverySpan {
    /// Records the span: the job is handed over now.
    pub fn record(self) {
        let DeliverySpan { tracer, builder, parent } = self;
        tracer.tracer.build_with_context(builder, &parent).end();
    }
}

#[cfg(test)]
pub(crate) mod recorder;
#[cfg(test)]
mod tests;

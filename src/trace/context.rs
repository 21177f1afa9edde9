//! W3C Trace Context as text: the headers `traceparent` and `tracestate`.

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::SpanContext;
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Name of the header that carries a trace.
pub const TRACEPARENT: &str = "traceparent";
/// Name of the header with the state of a trace.
pub const TRACESTATE: &str = "tracestate";
/// Number of characters of a `traceparent`: two digits, a trace id, a span id and flags (W3C Trace Context, section
/// 3.2).
const TRACEPARENT_CHARS: usize = 55;
/// Maximum size of a `tracestate` in bytes: every participant has to pass on at least this much (section 3.3.1.5).
const TRACESTATE_BYTES_MAX: usize = 512;

/// Trace context in headers of a call or of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHeaders<'a> {
    /// The `traceparent` header.
    pub parent: &'a str,
    /// The `tracestate` header; may be empty.
    pub state: &'a str,
}

// === impl TraceHeaders ===

impl<'a> TraceHeaders<'a> {
    /// Reads the headers that `get` returns by their names. A trace of another form counts as none: it belongs to the
    /// caller, and the server does not depend on it. A `tracestate` that is too long is left out.
    pub fn read(get: impl Fn(&'static str) -> Option<&'a str>) -> Option<TraceHeaders<'a>> {
        let parent = get(TRACEPARENT)?;
        let plain = |parent: &&str| parent.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        let parent =
            Some(parent).filter(|parent| parent.len() == TRACEPARENT_CHARS).filter(plain)?;
        let state = get(TRACESTATE).filter(|state| state.len() <= TRACESTATE_BYTES_MAX);
        Some(TraceHeaders { parent, state: state.unwrap_or_default() })
    }

    /// Returns a context whose span is the one that the headers name; one without a span if they are not valid.
    pub(super) fn context(self) -> Context {
        TraceContextPropagator::new().extract_with_context(&Context::new(), &self)
    }
}

impl Extractor for TraceHeaders<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            TRACEPARENT => Some(self.parent),
            TRACESTATE => Some(self.state),
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TRACEPARENT, TRACESTATE]
    }
}

/// Returns a span context as a `traceparent`.
pub(super) fn traceparent(span: &SpanContext) -> String {
    let flags = u8::from(span.is_sampled());
    format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id())
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TraceContextExt as _;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_trace_of_another_form_is_none() {
        let read = |parent, state| {
            TraceHeaders::read(move |name| match name {
                TRACEPARENT => parent,
                _ => state,
            })
        };
        let wrong_digit = PARENT.replace('a', "x");
        let too_long = format!("{PARENT}-0");
        for bad in ["", "00-0af7", &wrong_digit, &too_long] {
            assert_eq!(read(Some(bad), None), None, "{bad}");
        }
        assert_eq!(read(None, Some("s=1")), None);
        let (longest, longer) = ("s".repeat(512), "s".repeat(513));
        for (state, expected) in [("s=1", "s=1"), (&longest, &longest), (&longer, "")] {
            let found = read(Some(PARENT), Some(state));
            assert_eq!(found, Some(TraceHeaders { parent: PARENT, state: expected }));
        }
    }

    #[test]
    fn a_context_is_read_and_written_back() {
        let context = TraceHeaders { parent: PARENT, state: "s=1" }.context();
        let span = context.span().span_context().clone();
        assert!(span.is_remote() && span.is_sampled());
        assert_eq!(span.trace_state().header(), "s=1");
        assert_eq!(traceparent(&span), PARENT);
        let zero = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
        assert!(
            !TraceHeaders { parent: zero, state: "" }.context().span().span_context().is_valid()
        );
    }
}

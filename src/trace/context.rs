//! W3C Trace Context as text: the headers `traceparent` and `tracestate`.

use std::str::FromStr as _;

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{SpanContext, TraceState};
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
    /// Reads the headers that `get` returns by their names. A trace that is not valid counts as none: it belongs to the
    /// caller, and the server does not depend on it. A `tracestate` that is too long or not valid is left out.
    pub fn read(get: impl Fn(&'static str) -> Option<&'a str>) -> Option<TraceHeaders<'a>> {
        let parent = get(TRACEPARENT).filter(|parent| is_traceparent(parent))?;
        let is_state = |state: &&str| {
            state.len() <= TRACESTATE_BYTES_MAX && TraceState::from_str(state).is_ok()
        };
        Some(TraceHeaders { parent, state: get(TRACESTATE).filter(is_state).unwrap_or_default() })
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

/// Returns whether a text is a `traceparent` of a version that is known: lowercase digits, and ids that are not zero.
fn is_traceparent(text: &str) -> bool {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let is_zero = |part: Option<&str>| part.is_none_or(|part| part.bytes().all(|b| b == b'0'));
    let form = |(i, b): (usize, u8)| if [2, 35, 52].contains(&i) { b == b'-' } else { is_digit(b) };
    text.len() == TRACEPARENT_CHARS
        && text.bytes().enumerate().all(form)
        && !text.starts_with("ff")
        && !is_zero(text.get(3..35))
        && !is_zero(text.get(36..52))
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
        let no_trace = PARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32));
        let no_span = PARENT.replace("b7ad6b7169203331", &"0".repeat(16));
        let (upper, version) = (PARENT.to_uppercase(), PARENT.replacen("00", "ff", 1));
        let dashes = "-".repeat(55);
        for bad in
            ["", "00-0af7", &wrong_digit, &too_long, &no_trace, &no_span, &upper, &version, &dashes]
        {
            assert_eq!(read(Some(bad), None), None, "{bad}");
        }
        assert_eq!(read(None, Some("s=1")), None);
        let (longest, longer) =
            (format!("s={}", "1".repeat(254)), format!("s={}", "1".repeat(511)));
        for (state, expected) in
            [("s=1", "s=1"), (&longest, &longest), (&longer, ""), (";;;===,\"", "")]
        {
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

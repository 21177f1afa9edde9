//! Trace context in environment variables, by which programs that start each other belong to one trace: `TRACEPARENT` and
//! `TRACESTATE`, as OpenTelemetry's specification "Environment variables as context propagation carriers" names them.

use std::collections::HashMap;

use crate::config;
use crate::trace::{TRACEPARENT, TRACESTATE, TraceHeaders};

/// Variables and the headers of a job that they stand for.
pub(super) const CARRIERS: [(&str, &str); 2] =
    [("TRACEPARENT", TRACEPARENT), ("TRACESTATE", TRACESTATE)];

/// Adds the trace context of this process to the headers of a job, unless they have one.
pub(super) fn add_to_headers(headers: &mut HashMap<String, String>) {
    if headers.contains_key(TRACEPARENT) {
        return;
    }
    let carried = CARRIERS.map(|(variable, header)| (header, config::variable(variable)));
    let value = |name| carried.iter().find(|(header, _)| *header == name)?.1.as_deref();
    let Some(TraceHeaders { parent, state }) = TraceHeaders::read(value) else { return };
    headers.insert(TRACEPARENT.to_owned(), parent.to_owned());
    if !state.is_empty() {
        headers.insert(TRACESTATE.to_owned(), state.to_owned());
    }
}

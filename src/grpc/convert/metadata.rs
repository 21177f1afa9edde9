//! Metadata of a call: its caller and its trace context.

use tonic::Request;
use tonic::metadata::MetadataMap;

/// Caller of a call, for display to people.
#[derive(Clone, Debug, Default)]
pub(in crate::grpc) struct Caller {
    /// Address of the client, or of the proxy in front of this server.
    pub(in crate::grpc) peer: String,
    /// User agent that the client has sent.
    pub(in crate::grpc) user_agent: String,
}

/// A W3C trace context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::grpc) struct Trace<'a> {
    /// The `traceparent` header.
    pub(in crate::grpc) parent: &'a str,
    /// The `tracestate` header; may be empty.
    pub(in crate::grpc) state: &'a str,
}

/// Name of the header that carries a trace.
pub(in crate::grpc) const TRACEPARENT: &str = "traceparent";
/// Name of the header with the state of a trace.
pub(in crate::grpc) const TRACESTATE: &str = "tracestate";
/// Number of characters of a `traceparent` that is passed on without parsing: two digits, a trace id, a span id and
/// flags (W3C Trace Context, section 3.2).
const TRACEPARENT_CHARS: usize = 55;
/// Maximum size of a `tracestate` in bytes: every participant has to pass on at least this much (section 3.3.1.5).
const TRACESTATE_BYTES_MAX: usize = 512;

/// Returns the caller of a request.
pub(in crate::grpc) fn caller<T>(request: &Request<T>) -> Caller {
    Caller {
        peer: request.remote_addr().map_or(String::new(), |peer| peer.to_string()),
        user_agent: text(request.metadata(), "user-agent").unwrap_or_default().to_owned(),
    }
}

/// Returns the trace of a call. A trace of another form counts as none: it belongs to the caller, and the server does
/// not depend on it.
pub(in crate::grpc) fn trace(metadata: &MetadataMap) -> Option<Trace<'_>> {
    let parent = text(metadata, TRACEPARENT)?;
    let plain = parent.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let parent = Some(parent).filter(|parent| parent.len() == TRACEPARENT_CHARS && plain)?;
    let state = text(metadata, TRACESTATE).filter(|state| state.len() <= TRACESTATE_BYTES_MAX);
    Some(Trace { parent, state: state.unwrap_or_default() })
}

/// Returns a header that is text.
fn text<'a>(metadata: &'a MetadataMap, name: &'static str) -> Option<&'a str> {
    metadata.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn metadata(headers: &[(&'static str, &str)]) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        for (name, value) in headers {
            metadata.insert(*name, value.parse().unwrap());
        }
        metadata
    }

    #[test]
    fn metadata_names_the_caller() {
        let mut request = Request::new(());
        assert_eq!(caller(&request).user_agent, "");
        *request.metadata_mut() = metadata(&[("user-agent", "grpc-go/1.60")]);
        let Caller { peer, user_agent } = caller(&request);
        assert_eq!((&*peer, &*user_agent), ("", "grpc-go/1.60"));
    }

    #[test]
    fn a_trace_of_another_form_is_none() {
        for bad in ["", "00-0af7", &PARENT.replace('a', "x"), &format!("{PARENT}-0")] {
            assert_eq!(trace(&metadata(&[(TRACEPARENT, bad)])), None, "{bad}");
        }
        assert_eq!(trace(&metadata(&[(TRACESTATE, "s=1")])), None);
        let (longest, longer) = ("s".repeat(512), "s".repeat(513));
        for (state, expected) in [("s=1", "s=1"), (&longest, &longest), (&longer, "")] {
            let metadata_map = metadata(&[(TRACEPARENT, PARENT), (TRACESTATE, state)]);
            assert_eq!(trace(&metadata_map), Some(Trace { parent: PARENT, state: expected }));
        }
    }
}

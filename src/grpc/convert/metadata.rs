//! What a call brings beside its message: who calls, and in which trace.

use tonic::Request;
use tonic::metadata::MetadataMap;

/// Who calls, for people.
#[derive(Clone, Debug, Default)]
pub(in crate::grpc) struct Caller {
    /// Its address, or that of the proxy before it.
    pub(in crate::grpc) peer: String,
    /// What it calls itself.
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
/// Name of the header that goes with it.
pub(in crate::grpc) const TRACESTATE: &str = "tracestate";
/// Characters of a `traceparent` that can be passed on unread: two digits, a trace id, a span id and flags
/// (W3C Trace Context, section 3.2).
const TRACEPARENT_CHARS: usize = 55;
/// Longest `tracestate` in bytes: as much as everybody has to pass on (section 3.3.1.5).
const TRACESTATE_BYTES_MAX: usize = 512;

/// Who calls.
pub(in crate::grpc) fn caller<T>(request: &Request<T>) -> Caller {
    Caller {
        peer: request.remote_addr().map_or(String::new(), |peer| peer.to_string()),
        user_agent: text(request.metadata(), "user-agent").unwrap_or_default().to_owned(),
    }
}

/// The trace of a call. One of another form is none: it is the caller's, and nothing of ours hangs on it.
pub(in crate::grpc) fn trace(metadata: &MetadataMap) -> Option<Trace<'_>> {
    let parent = text(metadata, TRACEPARENT)?;
    let plain = parent.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    let parent = Some(parent).filter(|parent| parent.len() == TRACEPARENT_CHARS && plain)?;
    let state = text(metadata, TRACESTATE).filter(|state| state.len() <= TRACESTATE_BYTES_MAX);
    Some(Trace { parent, state: state.unwrap_or_default() })
}

/// A header that is text.
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
    fn a_caller_says_what_it_is() {
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
            let told = metadata(&[(TRACEPARENT, PARENT), (TRACESTATE, state)]);
            assert_eq!(trace(&told), Some(Trace { parent: PARENT, state: expected }));
        }
    }
}

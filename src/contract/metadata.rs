//! Metadata of a call: its caller and its trace context.

use tonic::Request;
use tonic::metadata::MetadataMap;

use crate::trace::TraceHeaders;

/// Caller of a call, for display to people.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// Address of the client, or of the proxy in front of this server.
    pub(crate) peer: String,
    /// User agent that the client has sent.
    pub(crate) user_agent: String,
}

/// Returns the caller of a request.
pub(crate) fn caller<T>(request: &Request<T>) -> Caller {
    Caller {
        peer: request.remote_addr().map_or(String::new(), |peer| peer.to_string()),
        user_agent: text(request.metadata(), "user-agent").unwrap_or_default().to_owned(),
    }
}

/// Returns the trace context that new jobs of a call get: that of its metadata, else `own`, the `traceparent` of its span
/// at this server, if the call is recorded.
pub(crate) fn trace<'a>(
    metadata: &'a MetadataMap,
    own: Option<&'a str>,
) -> Option<TraceHeaders<'a>> {
    let own = || own.map(|parent| TraceHeaders { parent, state: "" });
    TraceHeaders::read(|name| text(metadata, name)).or_else(own)
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
    fn the_trace_of_the_caller_comes_before_the_span_of_the_server() {
        const OWN: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
        let own = TraceHeaders { parent: OWN, state: "" };
        let of_caller = metadata(&[("traceparent", PARENT), ("tracestate", "s=1")]);
        let caller = TraceHeaders { parent: PARENT, state: "s=1" };
        assert_eq!(trace(&of_caller, Some(OWN)), Some(caller));
        assert_eq!(trace(&metadata(&[("traceparent", "00-1")]), Some(OWN)), Some(own));
        assert_eq!(trace(&metadata(&[]), None), None);
    }
}

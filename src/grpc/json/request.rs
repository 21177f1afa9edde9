//! The request of a JSON call: its text becomes the message of a gRPC call. Runs within the layers, which limit the
//! text in bytes and in time.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut as _, Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full};
use prost::Message as _;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::Service;

use crate::canonical_json;
use crate::domain::limit;

use super::super::decoded_size::{DecodedSize, PREFIX_BYTES};
use super::super::status::RpcError;
use super::SMALL_BYTES_MAX;
use super::error::JsonError;

/// Maximum number of characters of the text about a mistake: it may quote a name of any length.
const MISTAKE_CHARS_MAX: usize = 256;
/// Maximum number of objects, lists and commas in a text, which is about its number of values. In memory a value takes
/// up to a hundred times its shortest text; the largest sensible request, an Ack of 1,000 items with 16 follow-up jobs
/// each, has half of this number.
const VALUES_MAX: usize = 1 << 18;

/// Message that the text of a call is, or the error of the call: an extension of its request.
#[derive(Clone, Debug)]
pub(super) struct JsonInput(pub(super) Result<MessageDescriptor, JsonError>);

/// Services of the gRPC port, called with JSON.
#[derive(Clone)]
pub(super) struct JsonRoutes {
    routes: Routes,
    /// Permit to parse a large text: one at a time, so that they take the memory of one.
    large: Arc<Semaphore>,
}

// === impl JsonRoutes ===

impl JsonRoutes {
    pub(super) fn new(routes: Routes, large: Arc<Semaphore>) -> JsonRoutes {
        JsonRoutes { routes, large }
    }
}

impl Service<Request<Body>> for JsonRoutes {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.routes, cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (mut routes, large) = (self.routes.clone(), Arc::clone(&self.large));
        Box::pin(async move {
            match to_grpc(request, &large).await {
                Ok(request) => routes.call(request).await,
                Err(error) => Ok(error.into_grpc()),
            }
        })
    }
}

/// Replaces the text of a request by the message of gRPC that it is.
async fn to_grpc(
    mut request: Request<Body>,
    large: &Semaphore,
) -> Result<Request<Body>, JsonError> {
    let input = request.extensions_mut().remove::<JsonInput>();
    let JsonInput(input) = input.ok_or_else(RpcError::internal)?;
    let input = input?;
    let (mut head, body) = request.into_parts();
    let text = read(body).await?;
    let message = if text.len() <= SMALL_BYTES_MAX {
        to_message(input, &text)?
    } else {
        let _permit = large.acquire().await.map_err(|_| RpcError::internal())?;
        let parsed = spawn_blocking(move || to_message(input, &text)).await;
        parsed.map_err(|_| RpcError::internal())??
    };
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    head.headers.insert(header::TE, HeaderValue::from_static("trailers"));
    Ok(Request::from_parts(head, Body::new(Full::new(message))))
}

/// Reads the whole text, in one piece.
async fn read(mut body: Body) -> Result<Bytes, JsonError> {
    let too_large = || JsonError::too_large(limit::JSON_BYTES_MAX);
    // A client that waits for leave to send its text has not sent it yet.
    if body.size_hint().lower() > limit::JSON_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let (mut first, mut text) = (Bytes::new(), BytesMut::new());
    while let Some(frame) = body.frame().await.transpose().map_err(unread)? {
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + text.len() + data.len() > limit::JSON_BYTES_MAX {
            return Err(too_large());
        }
        if first.is_empty() && text.is_empty() {
            first = data;
            continue;
        }
        text.extend_from_slice(&std::mem::take(&mut first));
        text.extend_from_slice(&data);
    }
    Ok(if text.is_empty() { first } else { text.freeze() })
}

/// Converts an error of a body. The layers take a body that breaks off for a call that its client has ended; over
/// HTTP/1.1 the client may still wait for an answer.
fn unread(error: Status) -> JsonError {
    match error.code() {
        Code::Cancelled => JsonError::broken_body(),
        _ => error.into(),
    }
}

/// Returns the framed message that a text is. No text at all is an empty message.
fn to_message(input: MessageDescriptor, text: &[u8]) -> Result<Bytes, JsonError> {
    if has_too_many_values(text) {
        return Err(RpcError::too_many_values(VALUES_MAX).into());
    }
    let name = input.full_name().to_owned();
    let message = if text.trim_ascii().is_empty() {
        DynamicMessage::new(input)
    } else {
        canonical_json::parse(input, text).map_err(|error| mistake(&error.to_string()))?
    };
    let length = message.encoded_len();
    if length > limit::REQUEST_BYTES_MAX {
        return Err(JsonError::too_large(limit::REQUEST_BYTES_MAX));
    }
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).map_err(|_| RpcError::internal())?);
    message.encode(&mut framed).map_err(|_| RpcError::internal())?;
    DecodedSize::of_message(&name).map_or(Ok(0), |mut size| size.read(&framed))?;
    Ok(framed.freeze())
}

/// Returns whether a text has more values than allowed.
fn has_too_many_values(text: &[u8]) -> bool {
    if text.len() <= VALUES_MAX {
        return false;
    }
    let (mut values, mut in_string, mut is_escaped) = (0, false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' | b',' if !in_string => values += 1,
            _ => {}
        }
    }
    values > VALUES_MAX
}

fn mistake(text: &str) -> JsonError {
    let shown: String = text.chars().take(MISTAKE_CHARS_MAX).collect();
    let rest = if shown.len() < text.len() { "…" } else { "" };
    Status::from(RpcError::malformed(&format!("{shown}{rest}"))).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &[u8]) -> Result<Bytes, JsonError> {
        let contract = canonical_json::contract().unwrap();
        to_message(contract.get_message_by_name("ringq.v1.GetRequest").unwrap(), text)
    }

    #[test]
    fn a_text_becomes_a_framed_message() {
        assert_eq!(message(br#"{"topic":"a"}"#).unwrap(), &b"\0\0\0\0\x03\x0a\x01a"[..]);
        for empty in [&b""[..], b" \n", b"{}"] {
            assert_eq!(message(empty).unwrap(), &[0; 5][..]);
        }
    }

    #[test]
    fn a_mistake_is_quoted_up_to_a_length() {
        let long = format!(r#"{{"{}":1}}"#, "ä".repeat(10_000));
        let error = format!("{:?}", message(long.as_bytes()).unwrap_err());
        assert!(error.contains("unrecognized field name 'ää") && error.contains('…'), "{error}");
        assert!(error.len() < 4_000, "{error}");
    }

    #[test]
    fn values_are_counted_outside_of_strings() {
        let list = |item: &str| format!("[{}]", vec![item; VALUES_MAX].join(","));
        assert!(has_too_many_values(list("{}").as_bytes()));
        assert!(has_too_many_values(list("\"\\\\\",[]").as_bytes()));
        assert!(has_too_many_values(list("7,7").as_bytes()));
        for strings in ["\"{},[]\"", "\"\\\"{},\""] {
            let text = format!("[{strings}]").repeat(VALUES_MAX + 1);
            assert!(has_too_many_values(text.as_bytes()), "{strings}");
            let half = format!("[{strings}]").repeat(VALUES_MAX / 2);
            assert!(!has_too_many_values(half.as_bytes()), "{strings}");
        }
        let error = message(list("{}").as_bytes()).unwrap_err();
        assert!(format!("{error:?}").contains("TOO_LARGE"), "{error:?}");
    }

    #[test]
    fn a_message_over_the_limit_of_grpc_is_refused() {
        let of =
            |bytes: usize| message(format!(r#"{{"topic":"{}"}}"#, "a".repeat(bytes)).as_bytes());
        // The key of the field and its length take five bytes.
        assert!(of(limit::REQUEST_BYTES_MAX - 5).is_ok());
        let error = of(limit::REQUEST_BYTES_MAX - 4).unwrap_err();
        assert!(format!("{error:?}").contains("413"), "{error:?}");
    }

    #[tokio::test]
    async fn a_text_in_many_pieces_is_read_up_to_the_limit() {
        let pieces = |count: usize, size: usize| {
            let piece =
                move |_| Ok::<_, Status>(http_body::Frame::data(Bytes::from(vec![b' '; size])));
            Body::new(http_body_util::StreamBody::new(futures::stream::iter((0..count).map(piece))))
        };
        assert_eq!(read(pieces(1, 7)).await.unwrap().len(), 7);
        assert_eq!(read(pieces(3, 7)).await.unwrap().len(), 21);
        assert_eq!(
            read(pieces(8, limit::JSON_BYTES_MAX / 8)).await.unwrap().len(),
            limit::JSON_BYTES_MAX
        );
        assert!(read(pieces(9, limit::JSON_BYTES_MAX / 8)).await.is_err());
        let whole = Body::new(Full::new(Bytes::from(vec![b' '; limit::JSON_BYTES_MAX + 1])));
        assert!(read(whole).await.is_err());
    }
}

//! The answer of a JSON call: its message becomes JSON text.
//!
//! A call ends with the last frame of its gRPC answer, which comes when the other frames are written. The text takes
//! their place: it holds them until it is written itself, and a body without the last frame stays open. So a Pull has
//! delivered its jobs when the JSON is written, and a client that does not read is treated as on the gRPC port.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::{HeaderName, HeaderValue, Response, header};
use http_body::{Body as _, Frame, SizeHint};
use prost_reflect::MessageDescriptor;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::{Code, Status};

use crate::canonical_json;

use super::super::decoded_size::PREFIX_BYTES;
use super::super::layers::{CallBody, call_abort};
use super::super::status::RpcError;
use super::SMALL_BYTES_MAX;
use super::error::{HttpStatus, JsonError};

/// Content type of every answer.
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Header with the id of the call, in requests and answers.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Body of an answer: a text, and its call until that is written.
pub(crate) struct JsonBody {
    text: Option<Bytes>,
    call: Option<OpenCall>,
    /// Counts the call among those in flight.
    _open: Option<TaskTrackerToken>,
}

/// Answer of a call that is not written yet.
struct OpenCall(CallBody);

/// Text of an answer, with what is held until it is written.
struct JsonText {
    text: Vec<u8>,
    _frames: Vec<Bytes>,
    _permit: OwnedSemaphorePermit,
}

/// Message of an answer, and the frames that it came in.
struct Message {
    encoded: Bytes,
    frames: Vec<Bytes>,
}

/// Converts the gRPC answer of a call whose RPC returns messages of the descriptor `output`.
pub(super) async fn to_json(
    answer: Response<CallBody>,
    output: Option<MessageDescriptor>,
    permit: OwnedSemaphorePermit,
    open: TaskTrackerToken,
    large: &Semaphore,
) -> Response<JsonBody> {
    let (mut head, body) = answer.into_parts();
    let http = head.extensions.remove::<HttpStatus>();
    let mut response = match Status::from_header_map(&head.headers) {
        Some(status) => to_response(&JsonError::from(status).with_http(http)),
        None => match convert(OpenCall(body), output, permit, large).await {
            Ok(body) => {
                let mut response = Response::new(body);
                response.headers_mut().insert(header::CONTENT_TYPE, JSON);
                response
            }
            Err(status) => to_response(&status.into()),
        },
    };
    let id = head.headers.remove(REQUEST_ID);
    response.headers_mut().extend(id.map(|id| (REQUEST_ID, id)));
    response.body_mut()._open = Some(open);
    response
}

/// Converts an error to an answer.
pub(crate) fn to_response(error: &JsonError) -> Response<JsonBody> {
    let (text, headers) = error.parts();
    let mut response = Response::new(JsonBody::text(text));
    *response.status_mut() = error.http();
    *response.headers_mut() = headers;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

/// Returns the message as JSON. The call goes on if its message has to be written first.
async fn convert(
    mut call: OpenCall,
    output: Option<MessageDescriptor>,
    permit: OwnedSemaphorePermit,
    large: &Semaphore,
) -> Result<JsonBody, Status> {
    let Message { encoded, frames } = call.message().await?;
    let output = output.ok_or_else(|| Status::from(RpcError::internal()))?;
    let text = to_text(output, encoded, large).await?;
    call.0.hold_bytes(text.len())?;
    let ended = poll_fn(|cx| Poll::Ready(call.poll_end(cx))).await;
    let text = Bytes::from_owner(JsonText { text, _frames: frames, _permit: permit });
    match ended {
        Poll::Ready(Ok(())) => Ok(JsonBody { text: Some(text), call: None, _open: None }),
        Poll::Ready(Err(status)) => Err(status),
        Poll::Pending => Ok(JsonBody { text: Some(text), call: Some(call), _open: None }),
    }
}

/// Returns the message as JSON text. A large one is written on a thread for blocking work, one at a time.
async fn to_text(
    output: MessageDescriptor,
    encoded: Bytes,
    large: &Semaphore,
) -> Result<Vec<u8>, Status> {
    let text = if encoded.len() <= SMALL_BYTES_MAX {
        canonical_json::to_text(output, &encoded)
    } else {
        let _permit = large.acquire().await.map_err(|_| RpcError::internal())?;
        let written = spawn_blocking(move || canonical_json::to_text(output, &encoded)).await;
        written.map_err(|_| RpcError::internal())?
    };
    text.map_err(|error| {
        tracing::error!(%error, "an answer cannot be JSON");
        RpcError::internal().into()
    })
}

// === impl JsonBody ===

impl JsonBody {
    /// Creates the body of an answer whose call has ended.
    fn text(text: Vec<u8>) -> JsonBody {
        JsonBody { text: Some(text.into()), call: None, _open: None }
    }
}

impl http_body::Body for JsonBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if let Some(text) = this.text.take() {
            return Poll::Ready(Some(Ok(Frame::data(text))));
        }
        let Some(call) = &mut this.call else { return Poll::Ready(None) };
        let ended = ready!(call.poll_end(cx));
        this.call = None;
        // An error cuts the answer off: its client must not take a part for the whole.
        Poll::Ready(ended.err().map(Err))
    }

    fn is_end_stream(&self) -> bool {
        self.text.is_none() && self.call.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.text, &self.call) {
            (text, None) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            // Without a length the end is sent by itself, when the call has ended.
            (_, Some(_)) => SizeHint::default(),
        }
    }
}

// === impl OpenCall ===

impl OpenCall {
    /// Reads the message of the answer.
    async fn message(&mut self) -> Result<Message, Status> {
        let (mut frames, mut received) = (Vec::new(), 0);
        loop {
            let frame = poll_fn(|cx| Pin::new(&mut self.0).poll_frame(cx)).await;
            let Some(frame) = frame.transpose()? else {
                return Err(RpcError::internal().into());
            };
            if let Some(trailers) = frame.trailers_ref() {
                let status = Status::from_header_map(trailers);
                return Err(status.unwrap_or_else(|| RpcError::internal().into()));
            }
            let Ok(data) = frame.into_data() else { continue };
            received += data.len();
            frames.push(data);
            if let Some(encoded) = whole(&frames, received) {
                return Ok(Message { encoded, frames });
            }
        }
    }

    /// Returns whether the call has ended well. It is pending as long as the message has to be written first.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        loop {
            let frame = ready!(Pin::new(&mut self.0).poll_frame(cx)).transpose()?;
            let Some(frame) = frame else { return Poll::Ready(Ok(())) };
            if let Some(trailers) = frame.trailers_ref() {
                let status = Status::from_header_map(trailers);
                let failed = status.filter(|status| status.code() != Code::Ok);
                return Poll::Ready(failed.map_or(Ok(()), Err));
            }
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        // On HTTP/1.1 the task is that of the connection, whose next calls have other deadlines.
        call_abort::withdraw();
    }
}

impl AsRef<[u8]> for JsonText {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// Returns the message in these frames if it is whole. A message in one frame is not copied.
fn whole(frames: &[Bytes], received: usize) -> Option<Bytes> {
    let joined = match frames {
        [one] => one.clone(),
        more => more.concat().into(),
    };
    let mut message = joined.clone();
    if message.remaining() < PREFIX_BYTES {
        return None;
    }
    let _is_compressed = message.get_u8();
    let length = usize::try_from(message.get_u32()).ok()?;
    (received >= PREFIX_BYTES + length).then(|| message.split_to(length))
}

//! Connections that send all writes of one turn of the runtime together.
//!
//! hyper passes on the body of a call only after its headers have been written. Each call would cost two packets, two
//! system calls here, and two wake-ups of the server, which can begin only with the second one. On an idle machine
//! the server even takes the processor from the client between the two.

use std::error::Error;
use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::TryFutureExt as _;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::HttpConnector;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tower::ServiceExt as _;

use super::refusals::Refusals;

/// Connects by TCP within `timeout`, as tonic does by itself. A timeout of tonic's own would be around this one, and
/// its error would not contain what took too long.
pub(super) fn connector(
    timeout: Duration,
) -> impl Service<
    Uri,
    Response = CoalescedWrites<impl Read + Write + Send + Unpin>,
    Error = impl Error + Send + Sync + 'static,
    Future: Send,
> + Send
+ Clone {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(timeout));
    tower::service_fn(move |uri: Uri| {
        let is_plain = uri.scheme_str() != Some("https");
        let connecting = tcp.clone().oneshot(uri);
        connecting.map_ok(move |tcp| CoalescedWrites::new(Refusals::new(tcp, is_plain)))
    })
}

/// Number of flushes before writes are delayed: those of a TLS handshake. A client that does not accept the server's
/// certificate writes the alert with the reason once only, and closes the connection.
const PROMPT_FLUSHES: u8 = 2;

/// Delays writes by one turn of the runtime: the writer keeps its data, and adds what has come meanwhile.
#[derive(Debug)]
pub(super) struct CoalescedWrites<T> {
    inner: T,
    /// Set when the turn has passed, until everything is written.
    open: bool,
    /// Number of flushes up to [`PROMPT_FLUSHES`].
    flushes: u8,
}

// === impl CoalescedWrites ===

impl<T> CoalescedWrites<T> {
    fn new(inner: T) -> CoalescedWrites<T> {
        CoalescedWrites { inner, open: true, flushes: 0 }
    }

    fn poll_yield(&mut self, cx: &Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.open, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<T: Read + Unpin> Read for CoalescedWrites<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<T: Write + Unpin> Write for CoalescedWrites<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<Result<usize>> {
        std::task::ready!(self.poll_yield(cx));
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        std::task::ready!(self.poll_yield(cx));
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        std::task::ready!(Pin::new(&mut self.inner).poll_flush(cx))?;
        self.flushes = self.flushes.saturating_add(1).min(PROMPT_FLUSHES);
        self.open = self.flushes < PROMPT_FLUSHES;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_util::io::InspectWriter;
    use tonic::codegen::http::Request;

    use super::*;

    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const SETTINGS_ACK: [u8; 9] = [0, 0, 0, 4, 1, 0, 0, 0, 0];
    const HEADERS: u8 = 1;
    const DATA: u8 = 0;
    const PIECES_MAX: usize = 64;

    /// Returns the kinds of the HTTP/2 frames in `bytes`.
    fn kinds(mut bytes: &[u8]) -> Vec<u8> {
        let mut kinds = Vec::new();
        while let [high, middle, low, kind, _, _, _, _, _, rest @ ..] = bytes {
            kinds.push(*kind);
            bytes = &rest[u32::from_be_bytes([0, *high, *middle, *low]) as usize..];
        }
        kinds
    }

    #[tokio::test]
    async fn headers_and_body_of_a_call_are_one_write() {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        let (reads, writes) = tokio::io::split(client);
        let (sender, written) = mpsc::sync_channel(PIECES_MAX);
        let writes = InspectWriter::new(writes, move |bytes| sender.send(bytes.to_vec()).unwrap());
        let client = CoalescedWrites::new(TokioIo::new(tokio::io::join(reads, writes)));
        let (mut calls, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), client).await.unwrap();
        tokio::spawn(connection);
        server.write_all(&SETTINGS).await.unwrap();
        server.write_all(&SETTINGS_ACK).await.unwrap();
        // Reads the client's preface and its acknowledgement of our settings.
        let mut seen = [0; 4_096];
        while !seen.windows(SETTINGS_ACK.len()).any(|bytes| bytes == SETTINGS_ACK) {
            let length = server.read(&mut seen).await.unwrap();
            seen[length..].fill(0);
        }
        written.try_iter().for_each(drop);
        for call in 0..5 {
            let request = Request::post("http://h/s/m").body("body".to_owned()).unwrap();
            tokio::spawn(calls.send_request(request));
            while !seen.starts_with(b"body") {
                server.read_exact(&mut seen[..9]).await.unwrap();
                let length = u32::from_be_bytes([0, seen[0], seen[1], seen[2]]) as usize;
                server.read_exact(&mut seen[..length]).await.unwrap();
            }
            seen.fill(0);
            let pieces: Vec<_> = written.try_iter().map(|bytes| kinds(&bytes)).collect();
            // The first flushes are prompt.
            if call >= usize::from(PROMPT_FLUSHES) {
                assert_eq!(pieces, [[HEADERS, DATA]]);
            }
        }
    }
}

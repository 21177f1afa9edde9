//! Refusals of a connection, which a server sends just before it closes: they must be read, and understood.
//!
//! - A server with TLS answers the first bytes without TLS with an alert, which is no HTTP/2; ringq itself with a GOAWAY
//!   frame, which no connection begins with.
//! - A server that requires a client certificate refuses after the client has sent its first call; the write of the next
//!   bytes fails then, although the reason has arrived.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};

use super::error::NEEDS_TLS;

/// Beginning of an alert of TLS 1.0 to 1.3: type 21, version 3.x. As the length of a first frame of HTTP/2, these
/// bytes are beyond each limit.
const TLS_ALERT: [u8; 2] = [21, 3];
/// Type of the GOAWAY frame of HTTP/2.
const GOAWAY: u8 = 7;
/// Error code of HTTP/2: the connection must have better security.
const INADEQUATE_SECURITY: u8 = 12;
/// Length of a frame of HTTP/2 up to the error code of a GOAWAY.
const FIRST_BYTES: usize = 17;

/// Connection whose end is found by reads: what the server sent last comes first.
#[derive(Debug)]
pub(super) struct Refusals<T> {
    inner: T,
    /// True until the first bytes of a connection without TLS have arrived.
    expects_refusal: bool,
}

// === impl Refusals ===

impl<T> Refusals<T> {
    /// Wraps a connection; `is_plain`: it is without TLS.
    pub(super) fn new(inner: T, is_plain: bool) -> Refusals<T> {
        Refusals { inner, expects_refusal: is_plain }
    }
}

/// Takes bytes for a closed connection as written: a read finds what the server sent before it closed, and then the end.
fn until_read(written: Result<usize>, length: usize) -> Result<usize> {
    match written {
        Err(error)
            if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            Ok(length)
        }
        written => written,
    }
}

/// Returns whether a server with TLS has refused a connection without, by the first bytes that it sent.
fn needs_tls(first: &[u8]) -> bool {
    first.starts_with(&TLS_ALERT)
        || matches!(first, [0, 0, _, GOAWAY, .., 0, 0, 0, INADEQUATE_SECURITY] if first.len() == FIRST_BYTES)
}

impl<T: Read + Unpin> Read for Refusals<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<Result<()>> {
        if !self.expects_refusal || buf.remaining() < FIRST_BYTES {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let mut bytes = [0; FIRST_BYTES];
        let mut first = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.inner).poll_read(cx, first.unfilled()))?;
        self.expects_refusal = false;
        if needs_tls(first.filled()) {
            let problem = format!("{NEEDS_TLS}; try https://");
            return Poll::Ready(Err(Error::new(ErrorKind::InvalidData, problem)));
        }
        buf.put_slice(first.filled());
        Poll::Ready(Ok(()))
    }
}

impl<T: Write + Unpin> Write for Refusals<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, buf));
        Poll::Ready(until_read(written, buf.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, bufs));
        Poll::Ready(until_read(written, bufs.iter().map(|buf| buf.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Connects; the server sends these bytes and closes with unread data, which resets the connection.
    async fn refused(bytes: &[u8], is_plain: bool) -> TokioIo<Refusals<TokioIo<TcpStream>>> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let mut client = TokioIo::new(Refusals::new(TokioIo::new(client), is_plain));
        client.write_all(b"call").await.unwrap();
        server.readable().await.unwrap();
        server.write_all(bytes).await.unwrap();
        drop(server);
        client
    }

    #[tokio::test]
    async fn the_last_bytes_of_a_server_are_read_whatever_was_written_since() {
        for is_plain in [false, true] {
            let mut client = refused(b"the reason", is_plain).await;
            // The second write of an unwrapped connection fails.
            for _ in 0..3 {
                client.write_all(b"more").await.unwrap();
            }
            let mut read = Vec::new();
            let _ = client.read_to_end(&mut read).await;
            assert_eq!(read, b"the reason");
            assert!(matches!(client.read(&mut [0]).await, Ok(0) | Err(_)), "it has ended");
        }
    }

    #[tokio::test]
    async fn a_refusal_for_the_lack_of_tls_is_an_error_only_without_tls() {
        let alert = vec![21, 3, 3, 0, 2, 2, 50];
        let goaway = |code| {
            let frame = [0, 0, 12, GOAWAY, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, code];
            [&frame[..], b"text"].concat()
        };
        for refusal in [alert, goaway(INADEQUATE_SECURITY)] {
            let mut read = Vec::new();
            let error = refused(&refusal, true).await.read_to_end(&mut read).await.unwrap_err();
            assert_eq!(error.to_string(), format!("{NEEDS_TLS}; try https://"));
            let _ = refused(&refusal, false).await.read_to_end(&mut read).await;
            assert_eq!(read, refusal);
        }
        let (mut read, other) = (Vec::new(), goaway(INADEQUATE_SECURITY - 1));
        let _ = refused(&other, true).await.read_to_end(&mut read).await;
        assert_eq!(read, other, "of a connection that ends for another reason");
    }
}

//! The end of connections that are not served: each client receives the reason before its connection is closed.
//!
//! A client that uses no TLS where it should is answered in its own protocol. One that uses TLS where there is none is
//! answered in plain HTTP/1.1, not with an alert: TLS libraries report bytes that are no TLS as what they are ("first
//! record does not look like a TLS handshake"), and the alert of a version or a cipher would mislead.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Maximum time by which a client can delay the end of its connection.
const LINGER_MAX: Duration = Duration::from_secs(1);
/// Maximum number of bytes that are read, and thrown away, after the answer.
const LINGER_BYTES_MAX: u64 = 64 << 10;

/// First byte of a TLS connection: the type of a record with a handshake message.
const HANDSHAKE_RECORD: u8 = 22;
/// First bytes of HTTP/2, and of no method of HTTP/1.1.
const HTTP2_START: &[u8] = b"PRI";

/// Type of the GOAWAY frame of HTTP/2. It is sent without the SETTINGS frame that a server begins with: after that a
/// client counts the connection as made, and connects again at once, without a pause, as often as it is closed.
const GOAWAY: u8 = 7;
/// Error code of HTTP/2: the connection must have better security.
const INADEQUATE_SECURITY: u8 = 12;

/// Protocol of a client, by the first bytes that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientProtocol {
    Tls,
    Http1,
    Http2,
    Unknown,
}

// === impl ClientProtocol ===

impl ClientProtocol {
    /// Number of bytes that are needed to recognize it.
    pub(super) const BYTES: usize = HTTP2_START.len();

    /// Recognizes the protocol of a client that has sent these bytes, at least one.
    pub(super) fn of(first: &[u8]) -> ClientProtocol {
        match first {
            [HANDSHAKE_RECORD, ..] => ClientProtocol::Tls,
            first if first.starts_with(HTTP2_START) => ClientProtocol::Http2,
            [b'A'..=b'Z', ..] => ClientProtocol::Http1,
            _ => ClientProtocol::Unknown,
        }
    }

    /// Returns the answer to a client of a port that uses TLS, if it is not TLS that the client uses.
    fn tls_required(self) -> Vec<u8> {
        let text = "this port uses TLS: use an https:// address";
        match self {
            ClientProtocol::Http1 => http1_answer(text),
            ClientProtocol::Http2 => {
                let length = u8::try_from(8 + text.len()).unwrap_or(u8::MAX);
                let head = [0, 0, length, GOAWAY, 0, 0, 0, 0, 0];
                let (last_stream, code) = ([0; 4], [0, 0, 0, INADEQUATE_SECURITY]);
                [&head[..], &last_stream, &code, text.as_bytes()].concat()
            }
            ClientProtocol::Tls | ClientProtocol::Unknown => Vec::new(),
        }
    }
}

/// Closes the connection of a client of this protocol, on a port that uses TLS.
pub(super) async fn refuse_plain_text(
    socket: impl AsyncRead + AsyncWrite + Unpin,
    protocol: ClientProtocol,
) {
    answer(socket, &protocol.tls_required()).await;
}

/// Closes the connection of a client that uses TLS, on a port that does not.
pub(super) async fn refuse_tls(socket: impl AsyncRead + AsyncWrite + Unpin) {
    answer_http1(socket, "this port does not use TLS: use an http:// address").await;
}

/// Answers a client of HTTP/1.1 that its request is wrong, for this reason, and closes the connection.
pub(crate) async fn answer_http1(socket: impl AsyncRead + AsyncWrite + Unpin, reason: &str) {
    answer(socket, &http1_answer(reason)).await;
}

/// Closes a connection. Reads on for a while: a socket that is closed while it has unread bytes resets its connection,
/// and the client's system then discards the last bytes that were sent.
pub(super) async fn linger(socket: impl AsyncRead + AsyncWrite + Unpin) {
    answer(socket, b"").await;
}

async fn answer(mut socket: impl AsyncRead + AsyncWrite + Unpin, bytes: &[u8]) {
    let close = async {
        socket.write_all(bytes).await?;
        socket.shutdown().await?;
        tokio::io::copy(&mut socket.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    // The connection ends in any case.
    let _ = tokio::time::timeout(LINGER_MAX, close).await;
}

fn http1_answer(text: &str) -> Vec<u8> {
    let length = text.len() + 1;
    format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\
         connection: close\r\n\r\n{text}\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_are_the_protocol() {
        for (first, protocol) in [
            (&b"\x16\x03\x01"[..], ClientProtocol::Tls),
            (b"PRI", ClientProtocol::Http2),
            (b"PUT", ClientProtocol::Http1),
            (b"P", ClientProtocol::Http1),
            (b"get", ClientProtocol::Unknown),
            (b"\0\0\0", ClientProtocol::Unknown),
        ] {
            assert_eq!(ClientProtocol::of(first), protocol, "{first:?}");
        }
    }
}

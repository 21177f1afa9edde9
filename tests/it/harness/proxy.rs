//! A TCP proxy in front of a Redis that loses published messages, as a network may. Calls and their answers all pass.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rand::Rng as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use super::Redis;

/// A running proxy.
pub(crate) struct LossyProxy {
    port: u16,
    losses: Arc<Losses>,
    _accepting: AbortOnDropHandle<()>,
}

struct Losses {
    /// Share of all messages that is lost, 0 to 1.
    part: f64,
    lost: AtomicU64,
    passed: AtomicU64,
}

// === impl LossyProxy ===

impl LossyProxy {
    /// Starts a proxy that loses this share of all messages, 0 to 1.
    pub(crate) async fn start(redis: &Redis, part: f64) -> LossyProxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, to) = (listener.local_addr().unwrap().port(), redis.port());
        let (lost, passed) = (AtomicU64::new(0), AtomicU64::new(0));
        let losses = Arc::new(Losses { part, lost, passed });
        let shared = Arc::clone(&losses);
        let accepting = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if let Ok(server) = TcpStream::connect(("127.0.0.1", to)).await {
                    connect(client, server, &shared);
                }
            }
        }));
        LossyProxy { port, losses, _accepting: accepting }
    }

    /// Returns the proxy's address as the url of a Redis.
    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the number of lost messages and the number of delivered ones.
    pub(crate) fn messages(&self) -> (u64, u64) {
        let Losses { lost, passed, .. } = &*self.losses;
        (lost.load(Ordering::Relaxed), passed.load(Ordering::Relaxed))
    }
}

/// Forwards both directions. Both tasks end with their sockets.
fn connect(client: TcpStream, server: TcpStream, losses: &Arc<Losses>) {
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
    }
    let ((from_client, to_client), (from_server, to_server)) =
        (client.into_split(), server.into_split());
    let subscribes = Arc::new(AtomicBool::new(false));
    tokio::spawn(calls(from_client, to_server, Arc::clone(&subscribes)));
    tokio::spawn(answers(from_server, to_client, subscribes, Arc::clone(losses)));
}

async fn calls(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, subscribes: Arc<AtomicBool>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        // Before it is sent, and so before it is answered.
        if buffer[..read].windows(9).any(|word| word.eq_ignore_ascii_case(b"SUBSCRIBE")) {
            subscribes.store(true, Ordering::SeqCst);
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn answers(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    subscribes: Arc<AtomicBool>,
    losses: Arc<Losses>,
) {
    let mut buffer = Vec::with_capacity(64 << 10);
    while let Ok(1..) = from.read_buf(&mut buffer).await {
        let out = if subscribes.load(Ordering::SeqCst) {
            losses.pass(&mut buffer)
        } else {
            std::mem::take(&mut buffer)
        };
        if to.write_all(&out).await.is_err() {
            return;
        }
    }
}

// === impl Losses ===

impl Losses {
    /// Returns the complete frames of `buffer` without the lost ones; `buffer` keeps the begin of the next frame.
    fn pass(&self, buffer: &mut Vec<u8>) -> Vec<u8> {
        let (mut out, mut at) = (Vec::new(), 0);
        while let Some(length) = frame(&buffer[at..]) {
            let frame = &buffer[at..at + length];
            at += length;
            if !is_message(frame) {
                out.extend_from_slice(frame);
            } else if rand::rng().random_bool(self.part) {
                self.lost.fetch_add(1, Ordering::Relaxed);
            } else {
                self.passed.fetch_add(1, Ordering::Relaxed);
                out.extend_from_slice(frame);
            }
        }
        buffer.drain(..at);
        out
    }
}

/// Returns whether a frame is a published message.
fn is_message(frame: &[u8]) -> bool {
    let inner = frame.split(|&byte| byte == b'\n').nth(2);
    matches!(frame.first(), Some(b'*' | b'>')) && inner == Some(b"message\r")
}

/// Returns the length of the first RESP frame; `None` if it is incomplete.
fn frame(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|end| end == b"\r\n")?;
    let number = || std::str::from_utf8(&bytes[1..line]).ok()?.parse::<i64>().ok();
    let mut end = line + 2;
    match bytes[0] {
        b'*' | b'>' => {
            for _ in 0..number()? {
                end += frame(&bytes[end..])?;
            }
        }
        b'$' => end += usize::try_from(number()?).map_or(0, |length| length + 2),
        _ => {}
    }
    (end <= bytes.len()).then_some(end)
}

#[test]
fn frames_are_distinguished() {
    let message = b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\n1\r\n2\r\n";
    assert!(is_message(message));
    assert_eq!(frame(message), Some(message.len()));
    assert_eq!(frame(&message[..message.len() - 1]), None);
    assert_eq!(frame(b"+OK\r\n$-1\r\n"), Some(5));
    assert_eq!(frame(b"$-1\r\n:1\r\n"), Some(5));
    assert!(!is_message(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"));
}

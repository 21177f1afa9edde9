//! Budget of an HTTP/2 connection for frames that carry no call. Such a frame costs its sender a few bytes, and the server
//! as much as the frame of a call: with a flood of them one connection would keep a processor busy. A connection that
//! has used up its budget is not read until the budget is refilled, so that a flood delays itself only; one that goes
//! on with it is closed.
//!
//! A connection earns budget with time and with what it lets the server write: a client that receives much data
//! acknowledges much of it, and pings to measure the network. h2 limits by itself the frames that this budget does not
//! count: headers in many parts, small frames of data, and calls that are reset before they were accepted.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::PREFACE;
use super::anonymous_calls::AnonymousCalls;
use super::frame_heads::{END_STREAM_OR_ACK, FrameHeads, kind};
use super::standing::Standing;

/// Control frames: what a new connection may send at once, most that it can save up, and refill per second.
const FRAMES: Allowance = Allowance { initial: 4_096, max: 16_384, per_second: 4_000 };
/// Calls that the client resets. It may reset all calls in flight together, when their deadlines pass.
const RESETS: Allowance = Allowance { initial: 128, max: 2_048, per_second: 200 };
/// Cost of SETTINGS in control frames: a change of the window is applied to each open call.
const SETTINGS_COST: i64 = 16;
/// Number of written bytes that earn a control frame.
const BYTES_PER_FRAME: i64 = 64;
/// Number of written bytes that earn a reset: about those of an answer.
const BYTES_PER_RESET: i64 = 128;
/// Number of frames after which other connections have their turn.
const TURN_FRAMES: u32 = 64;

/// Longest time for which a connection uses up its budget again and again; then it is closed.
const FLOOD_MAX: Duration = Duration::from_secs(5);
/// Time after a delay in which a client that has paused does not use up its budget again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Text of the error of a closed connection.
const FLOOD: &str = "too many control frames or resets";

/// Limits of a budget.
#[derive(Clone, Copy, Debug)]
struct Allowance {
    initial: i64,
    max: i64,
    per_second: i64,
}

/// Rest of a budget; negative after a read with more frames than that.
#[derive(Clone, Copy, Debug)]
struct Budget {
    allowance: Allowance,
    left: i64,
}

/// Socket that delays a connection whose budget is used up, or that has too many calls without an identity.
pub(crate) struct FrameBudget<S> {
    inner: S,
    heads: FrameHeads,
    /// `None`: the connection has shown an identity.
    anonymous: Option<Box<AnonymousCalls>>,
    frames: Budget,
    resets: Budget,
    refilled: Instant,
    written: i64,
    /// Frames since the last turn of others.
    in_turn: u32,
    /// Time of the first delay since the client last paused, and of the end of the last one.
    flooded_since: Option<Instant>,
    delayed_until: Instant,
    /// Wait for the budget to be refilled.
    wait: Option<Pin<Box<Sleep>>>,
}

/// Returns whether a budget has ended the connection with this error.
pub(super) fn is_flood(error: Option<&io::Error>) -> bool {
    error.is_some_and(|error| error.kind() == io::ErrorKind::QuotaExceeded)
}

// === impl Budget ===

impl Budget {
    fn new(allowance: Allowance) -> Budget {
        Budget { allowance, left: allowance.initial }
    }

    fn earn(&mut self, count: i64) {
        self.left = self.left.saturating_add(count).min(self.allowance.max);
    }

    fn refill(&mut self, elapsed_ms: i64) {
        self.earn(elapsed_ms.saturating_mul(self.allowance.per_second) / 1_000);
    }

    /// Returns the time after which something is left.
    fn wait(&self) -> Duration {
        let missing = u64::try_from(1 - self.left).unwrap_or(0);
        let rate = u64::try_from(self.allowance.per_second).unwrap_or(1);
        Duration::from_millis((missing * 1_000).div_ceil(rate))
    }
}

// === impl FrameBudget ===

impl<S> FrameBudget<S> {
    /// Wraps the socket of a connection that begins with its preface.
    pub(crate) fn new(inner: S, standing: &Arc<Standing>) -> FrameBudget<S> {
        FrameBudget {
            inner,
            heads: FrameHeads::after(PREFACE.len()),
            anonymous: Some(Box::new(AnonymousCalls::new(Arc::clone(standing)))),
            frames: Budget::new(FRAMES),
            resets: Budget::new(RESETS),
            refilled: Instant::now(),
            written: 0,
            in_turn: 0,
            flooded_since: None,
            delayed_until: Instant::now(),
            wait: None,
        }
    }

    /// Takes the frames in these bytes from the budget.
    fn take(&mut self, bytes: &[u8]) {
        let FrameBudget { heads, anonymous, frames, resets, in_turn, .. } = self;
        heads.read(bytes, |head| {
            *in_turn += 1;
            match head.kind {
                kind::DATA | kind::HEADERS => {}
                kind::RST_STREAM => resets.left -= 1,
                kind::SETTINGS if head.flags & END_STREAM_OR_ACK == 0 => {
                    frames.left -= SETTINGS_COST
                }
                _ => frames.left -= 1,
            }
            if let Some(anonymous) = anonymous {
                anonymous.received(head);
            }
        });
    }

    /// Returns whether the budget is used up, after it was refilled. It is refilled only then, so that a read needs no
    /// clock; what was saved before is used up by then.
    fn is_used_up(&mut self) -> bool {
        if self.frames.left > 0 && self.resets.left > 0 {
            return false;
        }
        let elapsed = i64::try_from(self.refilled.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.refilled += Duration::from_millis(u64::try_from(elapsed).unwrap_or(0));
        self.frames.refill(elapsed);
        self.resets.refill(elapsed);
        self.frames.left <= 0 || self.resets.left <= 0
    }

    /// Waits until something of the budget is left, and lets others have their turn.
    ///
    /// # Errors
    /// The client floods the connection.
    fn poll_allowed(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(wait) = &mut self.wait {
                ready!(wait.as_mut().poll(cx));
                self.wait = None;
                self.delayed_until = Instant::now();
            }
            if !self.is_used_up() {
                break;
            }
            let now = Instant::now();
            if now - self.delayed_until >= PAUSE_MIN {
                self.flooded_since = None;
            }
            if now - *self.flooded_since.get_or_insert(now) > FLOOD_MAX {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::QuotaExceeded, FLOOD)));
            }
            let at = now + self.frames.wait().max(self.resets.wait());
            self.wait = Some(Box::pin(sleep_until(at)));
        }
        if self.in_turn >= TURN_FRAMES {
            self.in_turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Counts the calls that end in the first `count` of these written bytes.
    fn count_written<'a>(&mut self, bytes: impl IntoIterator<Item = &'a [u8]>, mut count: usize) {
        if let Some(anonymous) = &mut self.anonymous {
            for part in bytes {
                let written = count.min(part.len());
                anonymous.sent(&part[..written]);
                count -= written;
            }
        }
    }

    /// Adds what these written bytes earn.
    fn earn(&mut self, bytes: usize) {
        self.written += i64::try_from(bytes).unwrap_or(0);
        let earned = self.written / BYTES_PER_RESET;
        self.written %= BYTES_PER_RESET;
        self.resets.earn(earned);
        self.frames.earn(earned * (BYTES_PER_RESET / BYTES_PER_FRAME));
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FrameBudget<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_allowed(cx))?;
        self.anonymous.take_if(|calls| calls.are_over());
        if let Some(anonymous) = &mut self.anonymous {
            ready!(anonymous.poll_room(cx));
            // The head of a frame by itself: its payload may have to wait.
            let count = self.heads.part_left().min(buffer.remaining());
            let mut part = ReadBuf::new(buffer.initialize_unfilled_to(count));
            let read = Pin::new(&mut self.inner).poll_read(cx, &mut part);
            match &read {
                Poll::Ready(_) => self.take(part.filled()),
                Poll::Pending => self.in_turn = 0,
            }
            let count = part.filled().len();
            buffer.advance(count);
            return read;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, buffer);
        match &read {
            Poll::Ready(_) => self.take(&buffer.filled()[before..]),
            Poll::Pending => self.in_turn = 0,
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FrameBudget<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, bytes))?;
        self.count_written([bytes], written);
        self.earn(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write_vectored(cx, bytes))?;
        self.count_written(bytes.iter().map(|part| &**part), written);
        self.earn(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    /// Size of a read of h2.
    const READ_BYTES: usize = 8 << 10;
    const PING: u8 = 6;
    const RST_STREAM: u8 = kind::RST_STREAM;
    const SETTINGS: u8 = kind::SETTINGS;

    fn frame(kind: u8, flags: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let head = [length[1], length[2], length[3], kind, flags, 0, 0, 0, 1];
        [&head[..], &vec![7; payload]].concat()
    }

    /// Returns a budget behind its preface, and the other end.
    async fn begun() -> (FrameBudget<DuplexStream>, DuplexStream) {
        let (mut client, server) = duplex(64 << 20);
        let standing = Arc::new(Standing::default());
        standing.identify();
        let mut server = FrameBudget::new(server, &standing);
        client.write_all(PREFACE).await.unwrap();
        server.read_exact(&mut [0; PREFACE.len()]).await.unwrap();
        (server, client)
    }

    /// Returns the time in milliseconds in which these frames are read.
    async fn reads(
        server: &mut FrameBudget<DuplexStream>,
        client: &mut DuplexStream,
        frame: &[u8],
        count: usize,
    ) -> io::Result<u128> {
        client.write_all(&frame.repeat(count)).await.unwrap();
        let begun = Instant::now();
        let mut left = frame.len() * count;
        while left > 0 {
            let mut read = vec![0; left.min(READ_BYTES)];
            server.read_exact(&mut read).await?;
            left -= read.len();
        }
        let took = begun.elapsed().as_millis();
        // The client pauses: there is nothing to read.
        assert!(tokio::time::timeout(Duration::from_secs(5), server.read_u8()).await.is_err());
        Ok(took)
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_read_as_fast_as_its_budget_is_refilled() {
        for (frame, count, limit) in [
            (frame(PING, 0, 8), 20_000, Some((1, FRAMES))),
            (frame(RST_STREAM, 0, 4), 1_200, Some((1, RESETS))),
            (frame(SETTINGS, 0, 0), 300, Some((SETTINGS_COST, FRAMES))),
            (frame(SETTINGS, 1, 0), 4_000, None),
            (frame(0, 0, 100), 100_000, None),
            (frame(1, 4, 50), 100_000, None),
        ] {
            let (mut server, mut client) = begun().await;
            let took = reads(&mut server, &mut client, &frame, count).await.unwrap();
            let Some((cost, allowance)) = limit else {
                assert_eq!(took, 0, "{frame:?}");
                continue;
            };
            let time = |frames: usize| {
                let cost = cost * i64::try_from(frames).unwrap() - allowance.initial;
                u128::try_from(cost.max(0) * 1_000 / allowance.per_second).unwrap()
            };
            // The frames of the last read are not waited for.
            let last = READ_BYTES.div_ceil(frame.len());
            let range = time(count.saturating_sub(last))..time(count) * 102 / 100;
            assert!(range.contains(&took), "{frame:?}: {took} ms, not in {range:?}");
            // After a pause the next flood begins anew.
            assert!(reads(&mut server, &mut client, &frame, count).await.is_ok());
            let endless = 40 * count;
            assert!(reads(&mut server, &mut client, &frame, endless).await.is_err());
        }
    }

    /// Returns what is read until nothing comes for a while.
    async fn read_now(server: &mut FrameBudget<DuplexStream>) -> usize {
        let (mut count, mut buffer) = (0, vec![0; READ_BYTES]);
        let second = Duration::from_secs(1);
        while let Ok(read) = tokio::time::timeout(second, server.read(&mut buffer)).await {
            count += read.unwrap();
        }
        count
    }

    /// Until it has shown an identity, a connection has a few calls, and the next one is read when one is written.
    #[tokio::test(start_paused = true)]
    async fn a_connection_without_an_identity_has_few_calls_at_once() {
        const END: u8 = END_STREAM_OR_ACK;
        let call = |n: u32| {
            let mut frame = frame(kind::HEADERS, 4 | END, 10);
            frame[5..9].copy_from_slice(&(2 * n + 1).to_be_bytes());
            frame
        };
        let length = call(0).len();
        let most = crate::domain::limit::ANONYMOUS_CALLS_MAX;
        for (answered, identified) in [(0, false), (1, false), (2, false), (7, false), (0, true)] {
            let (mut client, server) = duplex(1 << 20);
            let standing = Arc::new(Standing::default());
            let mut server = FrameBudget::new(server, &standing);
            let calls: Vec<u8> = (0..1_000).flat_map(call).collect();
            client.write_all(&[PREFACE, &calls].concat()).await.unwrap();
            // The head of one more is read, to know that it is one.
            let first = PREFACE.len() + most * length + 9;
            assert_eq!(read_now(&mut server).await, first);
            if identified {
                standing.identify();
            }
            let answers: Vec<u8> = (0..answered).flat_map(call).collect();
            server.write_all(&answers).await.unwrap();
            let all = first + read_now(&mut server).await - PREFACE.len();
            let answered = usize::try_from(answered).unwrap();
            let wanted = if identified { 1_000 * length } else { (most + answered) * length + 9 };
            assert_eq!(all, wanted, "{answered} answered");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_earn_budget() {
        let (mut server, mut client) = begun().await;
        let ping = frame(PING, 0, 8);
        for _ in 0..10 {
            let answers = vec![7; 4_096 * 64];
            server.write_all(&answers).await.unwrap();
            client.read_exact(&mut vec![0; answers.len()]).await.unwrap();
            assert_eq!(reads(&mut server, &mut client, &ping, 4_000).await.unwrap(), 0);
        }
        assert!(
            reads(&mut server, &mut client, &ping, 40_000).await.unwrap() > 1_000,
            "savings are limited"
        );
    }
}

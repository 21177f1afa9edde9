//! Calls of an anonymous connection. h2 keeps the memory of as many streams as were ever open at once on a connection, as
//! long as that lives, and offers no way to raise their number later. So the client may have the number that a client with
//! an identity needs, and while there was none, no call beyond a few is read from the socket.
//!
//! A call is open until both sides have ended it, or one has reset it. Few may be without their whole answer; more may be
//! answered whose messages have not ended, since the ends may lie behind the calls that are not read. And each waits for
//! its turn among those of its address: they cost the server as much as other calls, and no quota bounds them.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep};

use crate::domain::limit;

use super::frame_heads::{END_STREAM_OR_ACK, FrameHead, FrameHeads, kind};
use super::standing::Standing;

/// Maximum number of open calls, with those that are answered and whose messages have not ended.
const OPEN_MAX: usize = 32;

/// Open calls of a connection until it has shown an identity.
#[derive(Debug)]
pub(super) struct AnonymousCalls {
    standing: Arc<Standing>,
    open: Vec<OpenCall>,
    /// Wait for the turn of the last call.
    turn: Option<Pin<Box<Sleep>>>,
    /// Highest stream that the client has opened.
    last: u32,
    written: FrameHeads,
}

/// Call that at least one side has not ended.
#[derive(Debug)]
struct OpenCall {
    stream: u32,
    ended_by: Option<Side>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}

// === impl AnonymousCalls ===

impl AnonymousCalls {
    /// Creates the calls of a connection that begins.
    pub(super) fn new(standing: Arc<Standing>) -> AnonymousCalls {
        let (open, written) = (Vec::new(), FrameHeads::after(0));
        AnonymousCalls { standing, open, turn: None, last: 0, written }
    }

    /// Returns whether the connection has shown an identity.
    pub(super) fn are_over(&self) -> bool {
        self.standing.is_known()
    }

    /// Waits until a call may be read.
    pub(super) fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.turn.take_if(|turn| turn.as_mut().poll(cx).is_ready());
        if self.turn.is_none() && !self.is_full() {
            return Poll::Ready(());
        }
        self.standing.reader.register(cx.waker());
        if self.are_over() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Counts a frame of the client whose head was read.
    pub(super) fn received(&mut self, head: FrameHead) {
        if head.kind == kind::HEADERS && head.stream > self.last {
            self.last = head.stream;
            self.open.push(OpenCall { stream: head.stream, ended_by: None });
            let wait = self.standing.take_call_turn();
            self.turn = (!wait.is_zero()).then(|| Box::pin(sleep(wait)));
        }
        self.end(head, Side::Client);
    }

    /// Counts the frames in these written bytes.
    pub(super) fn sent(&mut self, bytes: &[u8]) {
        let was_full = self.is_full();
        let mut written = std::mem::replace(&mut self.written, FrameHeads::after(0));
        written.read(bytes, |head| self.end(head, Side::Server));
        self.written = written;
        if was_full && !self.is_full() {
            self.standing.reader.wake();
        }
    }

    /// Returns whether the payload of the last frame waits: it opens one call too many.
    fn is_full(&self) -> bool {
        let is_unanswered = |call: &&OpenCall| call.ended_by != Some(Side::Server);
        self.open.len() > OPEN_MAX
            || self.open.iter().filter(is_unanswered).count() > limit::ANONYMOUS_CALLS_MAX
    }

    fn end(&mut self, head: FrameHead, by: Side) {
        let is_last =
            matches!(head.kind, kind::DATA | kind::HEADERS) && head.flags & END_STREAM_OR_ACK != 0;
        let is_reset = head.kind == kind::RST_STREAM;
        if !is_last && !is_reset {
            return;
        }
        let Some(index) = self.open.iter().position(|call| call.stream == head.stream) else {
            return;
        };
        let call = &mut self.open[index];
        if is_reset || call.ended_by.is_some_and(|side| side != by) {
            self.open.swap_remove(index);
        } else {
            call.ended_by = Some(by);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const END: u8 = END_STREAM_OR_ACK;

    fn received(calls: &mut AnonymousCalls, kind: u8, flags: u8, stream: u32) {
        calls.received(FrameHead { kind, flags, stream });
    }

    fn sent(calls: &mut AnonymousCalls, kind: u8, flags: u8, stream: u8) {
        calls.sent(&[0, 0, 1, kind, flags, 0, 0, 0, stream, 7]);
    }

    fn has_room(calls: &mut AnonymousCalls) -> bool {
        calls.poll_room(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_call_is_open_until_both_sides_have_ended_it_or_one_has_reset_it() {
        let standing = Arc::new(Standing::default());
        let mut calls = AnonymousCalls::new(Arc::clone(&standing));
        let most = u32::try_from(limit::ANONYMOUS_CALLS_MAX).unwrap();
        for n in 0..most {
            received(&mut calls, kind::HEADERS, 0, 2 * n + 1);
        }
        assert!(has_room(&mut calls));
        received(&mut calls, kind::HEADERS, 0, 2 * most + 1);
        assert!(!has_room(&mut calls), "one too many");
        received(&mut calls, kind::DATA, END, 1);
        assert!(!has_room(&mut calls), "the answer is not written");
        sent(&mut calls, kind::HEADERS, 4, 1);
        assert!(!has_room(&mut calls), "nor its end");
        sent(&mut calls, kind::HEADERS, END, 1);
        assert!(has_room(&mut calls));
        received(&mut calls, kind::HEADERS, END, 2 * most + 3);
        sent(&mut calls, kind::HEADERS, END, 3);
        assert!(has_room(&mut calls), "its message may end behind the calls that wait");
        sent(&mut calls, kind::RST_STREAM, 0, 3);
        assert!(has_room(&mut calls));
        received(&mut calls, kind::HEADERS, END, 2 * most + 5);
        assert!(!has_room(&mut calls));
        // Trailers of a call that is open, and frames of calls that are not.
        received(&mut calls, kind::HEADERS, END, 5);
        received(&mut calls, kind::HEADERS, END, 1);
        assert!(!has_room(&mut calls));
        received(&mut calls, kind::RST_STREAM, 0, 5);
        assert!(has_room(&mut calls));
        for n in 10..100 {
            received(&mut calls, kind::HEADERS, 0, 2 * (most + n) + 1);
        }
        assert!(!has_room(&mut calls));
        standing.identify();
        assert!(has_room(&mut calls) && calls.are_over());
    }

    #[test]
    fn messages_that_do_not_end_are_bounded_behind_their_answers() {
        let mut calls = AnonymousCalls::new(Arc::default());
        for n in 0..=OPEN_MAX {
            assert!(has_room(&mut calls), "{n} calls");
            let stream = u8::try_from(2 * n + 1).unwrap();
            received(&mut calls, kind::HEADERS, 0, stream.into());
            sent(&mut calls, kind::HEADERS, END, stream);
        }
        assert!(!has_room(&mut calls));
        received(&mut calls, kind::DATA, END, 1);
        assert!(has_room(&mut calls));
    }

    /// The calls of an address come at the rate of its turns, on however many connections; those of others do not wait.
    #[tokio::test(start_paused = true)]
    async fn calls_wait_for_the_turn_of_their_address() {
        let peer = |last| std::net::IpAddr::from([10, 0, 0, last]);
        for connections in [1_u32, 2, 7] {
            let port =
                super::super::Connections::new("grpc", 50, 20, crate::metrics::Metrics::new());
            let slots: Vec<_> = (0..connections).map(|_| port.admit(peer(1)).unwrap().0).collect();
            let calls = slots.iter().map(|slot| AnonymousCalls::new(Arc::clone(slot.standing())));
            let mut calls: Vec<_> = calls.collect();
            let begun = tokio::time::Instant::now();
            for n in 0..2_000 / connections {
                for calls in &mut calls {
                    received(calls, kind::HEADERS, END, 2 * n + 1);
                    std::future::poll_fn(|cx| calls.poll_room(cx)).await;
                    calls.sent(
                        &[&[0, 0, 0, kind::HEADERS, END][..], &(2 * n + 1).to_be_bytes()].concat(),
                    );
                }
            }
            // 1,000 a second, but for the first 20, as many as connections.
            let took = begun.elapsed().as_millis();
            assert!((1_950..2_100).contains(&took), "{connections} connections: {took} ms");
            let (other, _) = port.admit(peer(2)).unwrap();
            assert!(other.standing().take_call_turn().is_zero());
            let most = (0..5_000).map(|_| slots[0].standing().take_call_turn()).max().unwrap();
            assert_eq!(most.as_millis(), 500, "a probe of the same address is not late");
        }
    }
}

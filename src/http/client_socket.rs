//! The reading half of a socket, which can be asked whether its client has closed the connection.
//!
//! hyper notices that only when it reads, and it does not read while it has unread bytes: one byte too many behind a
//! request hides the end of the connection. A job would be sent to a client that is gone, and wait for the end of its
//! lease.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;

/// Reading half of a socket. Cloning shares it.
#[derive(Clone, Debug)]
pub(super) struct ClientSocket(Arc<Mutex<OwnedReadHalf>>);

// === impl ClientSocket ===

impl ClientSocket {
    /// Wraps the half.
    pub(super) fn new(half: OwnedReadHalf) -> ClientSocket {
        ClientSocket(Arc::new(Mutex::new(half)))
    }

    /// Returns whether the client has closed its side, even if there are bytes that are not read yet.
    pub(super) fn is_closed(&self) -> bool {
        let half = self.0.lock();
        let socket: &tokio::net::TcpStream = half.as_ref();
        let mut asked = [PollFd::new(socket, CLOSED)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error of the question is none of the connection.
        poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().intersects(CLOSED | ALWAYS_ASKED)
    }
}

/// Event of a peer that sends no more; elsewhere than on Linux only a connection that is reset is noticed.
#[cfg(target_os = "linux")]
const CLOSED: PollFlags = PollFlags::RDHUP;
#[cfg(not(target_os = "linux"))]
const CLOSED: PollFlags = PollFlags::empty();
/// Events that are reported without being asked for.
const ALWAYS_ASKED: PollFlags = PollFlags::HUP.union(PollFlags::ERR);

impl AsyncRead for ClientSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.lock()).poll_read(cx, buffer)
    }
}

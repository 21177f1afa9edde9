//! A terminal that a command runs on.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// What is written to it is read meanwhile, so that nobody waits for a reader.
pub(super) struct Terminal {
    theirs: OwnedFd,
    reader: JoinHandle<Vec<u8>>,
}

// === impl Terminal ===

impl Terminal {
    /// One of so many columns.
    pub(super) fn of(columns: u16) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = open(name, flags, Mode::empty()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&theirs, size).unwrap();
        let mut ours = File::from(ours);
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            // It ends with an error once nobody has the other side open.
            let _ = ours.read_to_end(&mut text);
            text
        });
        Terminal { theirs, reader }
    }

    /// For a command.
    pub(super) fn stdio(&self) -> Stdio {
        self.theirs.try_clone().unwrap().into()
    }

    /// What was written to it, when all commands have ended.
    pub(super) fn text(self) -> String {
        drop(self.theirs);
        let text = String::from_utf8(self.reader.join().unwrap()).unwrap();
        text.replace("\r\n", "\n")
    }
}

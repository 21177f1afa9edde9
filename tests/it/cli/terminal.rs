//! A terminal for commands.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::thread::JoinHandle;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A terminal whose output is read continuously, so that no writer blocks.
pub(super) struct Terminal {
    theirs: OwnedFd,
    keyboard: OwnedFd,
    reader: JoinHandle<Vec<u8>>,
}

// === impl Terminal ===

impl Terminal {
    /// Creates a terminal with this number of columns.
    pub(super) fn of(columns: u16) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let theirs = open(name, flags, Mode::empty()).unwrap();
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&theirs, size).unwrap();
        let keyboard = ours.try_clone().unwrap();
        let mut ours = File::from(ours);
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            // The read fails once no process has the other side open.
            let _ = ours.read_to_end(&mut text);
            text
        });
        Terminal { theirs, keyboard, reader }
    }

    /// Returns it as the standard stream of a command.
    pub(super) fn stdio(&self) -> Stdio {
        self.theirs.try_clone().unwrap().into()
    }

    /// Types this text.
    pub(super) fn types(&self, text: &str) {
        rustix::io::write(&self.keyboard, text.as_bytes()).unwrap();
    }

    /// Returns its output, when all commands have ended.
    pub(super) fn text(self) -> String {
        // The text that was typed is in it, as the terminal shows it.
        drop(self.theirs);
        let text = String::from_utf8(self.reader.join().unwrap()).unwrap();
        text.replace("\r\n", "\n")
    }
}

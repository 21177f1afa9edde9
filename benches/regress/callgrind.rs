//! Instruction counts by valgrind's callgrind: the same program on the same input has the same count on every
//! machine, busy or not, except for effects of randomness and of time.
//!
//! Callgrind writes its counts whenever a certain function is called, the mark, and starts again from zero: the code
//! between two marks is one part.

use std::ffi::OsString;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// The mark of our own programs, as callgrind finds [`callgrind_mark`].
pub(crate) const OWN_MARK: &str = "*callgrind_mark*";

/// The C library chooses among its copies of memcpy and strlen by the features of the CPU, here always the plain
/// ones: the others shift some counts by 4 %. A version ignores names that it does not have.
const PLAIN_CPU: &str =
    "glibc.cpu.hwcaps=-AVX2,-AVX2_Usable,-AVX512VL,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load";

/// The counts of one program.
pub(crate) struct CallgrindCounts {
    dir: TempDir,
    parts_read: usize,
}

/// Ends a part. Callgrind only needs its name.
#[inline(never)]
pub(crate) fn callgrind_mark() {
    black_box(());
}

/// Returns whether valgrind is installed.
pub(crate) fn is_installed() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

// === impl CallgrindCounts ===

impl CallgrindCounts {
    /// Creates the counts of a program that is not started yet.
    pub(crate) fn new() -> Result<CallgrindCounts> {
        Ok(CallgrindCounts { dir: TempDir::new()?, parts_read: 0 })
    }

    /// Builds the command of the program under callgrind, without its arguments.
    pub(crate) fn command(&self, program: impl Into<OsString>, mark: &str) -> Command {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--tool=callgrind"]);
        command.arg(format!("--dump-before={mark}"));
        command.arg(format!("--callgrind-out-file={}", self.file().display()));
        command.arg(program.into()).env("GLIBC_TUNABLES", PLAIN_CPU);
        command
    }

    /// Returns the instructions of the parts that ended since the last call.
    pub(crate) fn parts(&mut self) -> Result<Vec<u64>> {
        let mut parts = Vec::new();
        while let Ok(text) = fs::read_to_string(self.part(self.parts_read + 1)) {
            let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
            parts.push(totals.context("a part without its total")?.trim().parse()?);
            self.parts_read += 1;
        }
        Ok(parts)
    }

    /// Returns the directory for files of the run.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("callgrind")
    }

    fn part(&self, number: usize) -> PathBuf {
        self.dir.path().join(format!("callgrind.{number}"))
    }
}

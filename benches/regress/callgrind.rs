//! Instructions as valgrind's callgrind counts them: the same program on the same input has the same count
//! on every machine, busy or not, but for what it makes of randomness and of time.
//!
//! Callgrind writes what it has counted whenever a certain function is called, the mark, and counts anew from
//! there: what lies between two marks is one part.

use std::ffi::OsString;
use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// The mark of a program of ours, as callgrind finds [`callgrind_mark`].
pub(crate) const OWN_MARK: &str = "*callgrind_mark*";

/// The C library chooses among its copies of memcpy and strlen by what the CPU can do, here always the plain
/// ones: the others shift some counts by 4 %. What a version of it does not know it ignores.
const PLAIN_CPU: &str =
    "glibc.cpu.hwcaps=-AVX2,-AVX2_Usable,-AVX512VL,-ERMS,-FSRM,-AVX_Fast_Unaligned_Load";

/// The counts of one program.
pub(crate) struct CallgrindCounts {
    dir: TempDir,
    parts_read: usize,
}

/// Ends a part. What is counted depends on nothing but its name.
#[inline(never)]
pub(crate) fn callgrind_mark() {
    black_box(());
}

/// Whether valgrind is there.
pub(crate) fn is_installed() -> bool {
    let version = Command::new("valgrind").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

// === impl Counts ===

impl CallgrindCounts {
    /// Of a program that is not started yet.
    pub(crate) fn new() -> Result<CallgrindCounts> {
        Ok(CallgrindCounts { dir: TempDir::new()?, parts_read: 0 })
    }

    /// The program under callgrind; its arguments are still to come.
    pub(crate) fn command(&self, program: impl Into<OsString>, mark: &str) -> Command {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--tool=callgrind"]);
        command.arg(format!("--dump-before={mark}"));
        command.arg(format!("--callgrind-out-file={}", self.file().display()));
        command.arg(program.into()).env("GLIBC_TUNABLES", PLAIN_CPU);
        command
    }

    /// The instructions of the parts that ended since this was asked last.
    pub(crate) fn parts(&mut self) -> Result<Vec<u64>> {
        let mut parts = Vec::new();
        while let Ok(text) = fs::read_to_string(self.part(self.parts_read + 1)) {
            let totals = text.lines().find_map(|line| line.strip_prefix("totals: "));
            parts.push(totals.context("a part without its total")?.trim().parse()?);
            self.parts_read += 1;
        }
        Ok(parts)
    }

    /// Where files of the run may lie.
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

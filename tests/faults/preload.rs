//! Libraries that change how a server syncs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::in_ci;
use crate::image::run;

/// Compiles this source file into a library in `dir`; `None` without a C compiler, which in CI is an error.
pub(crate) fn compile(source: &str, dir: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults").join(source);
    let library = dir.join("preload.so");
    let compiled =
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source));
    match compiled {
        Ok(()) => Some(library),
        Err(error) if in_ci() => panic!("{error:#}"),
        Err(error) => {
            println!("skipped: no library to preload: {error:#}");
            None
        }
    }
}

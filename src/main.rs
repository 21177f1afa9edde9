//! The `ringq` program: see [`ringq::cli`].

use std::process::ExitCode;

// Faster than the system's under many threads, above all where that is musl's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ringq::cli::run()
}

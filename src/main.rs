//! The `ringq` program, see [`ringq::cli`].

use std::process::ExitCode;

// Faster than the system allocator with many threads, above all with musl.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ringq::cli::run()
}

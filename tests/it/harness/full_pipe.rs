//! Pipes whose reader has stopped.

use std::io::{self, PipeReader, PipeWriter, Write as _};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Makes a pipe without room for a byte. Its reader reads nothing unless the test does.
#[allow(dead_code, reason = "the fault scenarios do not use it")]
pub(crate) fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    for bytes in [&[b'.'; 4_096][..], b"."] {
        while writer.write(bytes).is_ok() {}
    }
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}

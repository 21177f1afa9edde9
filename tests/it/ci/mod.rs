//! Scripts of `.ci`, with programs that only print in place of those that take long.

mod again;
mod long;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

fn write_script(path: &Path, text: &str) {
    fs::write(path, format!("#!/bin/sh\n{text}")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

//! promtool, the tool of Prometheus that checks metrics and rules.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::harness::{in_ci, within_long};

/// Longest time of a run: it evaluates days of samples, beside other tests.
const COMPUTES_MAX: Duration = Duration::from_secs(120);

/// An installed promtool.
pub(crate) struct Promtool(PathBuf);

/// Finds promtool in .tools/bin or on PATH. `None`: not installed; the test prints that and is skipped.
pub(crate) async fn promtool() -> Option<Promtool> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join(".tools/bin/promtool");
    let promtool = if ours.exists() { ours } else { "promtool".into() };
    let version = Command::new(&promtool).arg("--version").output().await;
    if version.is_ok_and(|output| output.status.success()) {
        return Some(Promtool(promtool));
    }
    assert!(!in_ci(), "promtool is missing: run .ci/install-test-tools");
    eprintln!("skipped: promtool is missing, .ci/install-test-tools gets it");
    None
}

// === impl Promtool ===

impl Promtool {
    /// Runs promtool in the root of the project with `input` on standard input. Returns all that it prints, as the
    /// error if it fails.
    pub(crate) async fn run(&self, args: &[&str], input: &str) -> Result<String, String> {
        let mut promtool = Command::new(&self.0)
            .args(args)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut stdin = promtool.stdin.take().unwrap();
        let write = async move { stdin.write_all(input.as_bytes()).await.unwrap() };
        let ended = async { tokio::join!(promtool.wait_with_output(), write) };
        let (output, ()) = within_long(COMPUTES_MAX, "promtool ends", ended).await;
        let output = output.unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        if output.status.success() { Ok(text) } else { Err(text) }
    }
}

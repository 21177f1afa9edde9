//! Runs of `ringq bench`, the program that measures.

use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::server::{self, LoadServer};

/// The report of a run of `ringq bench`. Its counts were balanced.
#[derive(Debug)]
pub(crate) struct BenchRunResult(Value);

/// Runs `ringq bench` with these arguments against a server.
pub(crate) fn run(server: &LoadServer, words: &str) -> Result<BenchRunResult> {
    let mut command = Command::new(server::binary());
    command.arg("bench").args(words.split_whitespace()).args(["-o", "json"]);
    command.args(["--server", &format!("http://{}", server.address)]).stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().context("start ringq bench")?;
    if !status.success() {
        let error = String::from_utf8_lossy(&stderr);
        bail!("ringq bench {words}: {status}: {}", error.trim().replace('\n', " "));
    }
    let report = serde_json::from_slice(&stdout).context("what ringq bench printed is no JSON")?;
    let measured = BenchRunResult(report);
    let overdue = measured.number("/rounds/0/overdue")?;
    ensure!(
        overdue == 0.0,
        "ringq bench {words}: {overdue} jobs were enqueued after they were due"
    );
    Ok(measured)
}

impl BenchRunResult {
    /// Returns the jobs per second of the timed part.
    pub(crate) fn rate(&self) -> Result<f64> {
        self.number("/rounds/0/rate")
    }

    /// Returns a latency in milliseconds, for example of `dispatch`, `p99`.
    pub(crate) fn latency_ms(&self, of: &str, part: &str) -> Result<f64> {
        Ok(self.number(&format!("/rounds/0/{of}_us/{part}"))? / 1e3)
    }

    /// Returns the number of its jobs, with those of the warm-up.
    pub(crate) fn jobs(&self) -> Result<f64> {
        Ok(self.number("/rounds/0/jobs")? + self.number("/setting/warm_up")?)
    }

    fn number(&self, pointer: &str) -> Result<f64> {
        let number = self.0.pointer(pointer).and_then(Value::as_f64);
        number.with_context(|| format!("ringq bench reports no {pointer}"))
    }
}

//! The pure functions of the bench `hot`, counted.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::callgrind::{CallgrindCounts, OWN_MARK, callgrind_mark};
use crate::{RegressFigure, own_program, paths};

/// Argument by which this program calls them, under callgrind.
pub(crate) const COMMAND: &str = "hot";
/// Number of calls of each function.
const CALLS: u32 = 200;
/// Number of rounds; the least of each figure counts. Hash tables have random seeds, and with one in four the table
/// of a credit is so unlucky that the same calls cost up to 70 % more.
const ROUNDS: usize = 7;

/// Returns their cost: instructions per call.
pub(crate) fn count() -> Result<Vec<RegressFigure>> {
    let mut counts = CallgrindCounts::new()?;
    let mut command: Command = counts.command(own_program()?, OWN_MARK);
    let status = command.arg(COMMAND).status()?;
    ensure!(status.success(), "the hot paths under callgrind: {status}");
    let (parts, names) = (counts.parts()?, paths::all());
    ensure!(parts.len() == ROUNDS * 2 * names.len(), "{} parts", parts.len());
    let calls: Vec<u64> = parts.into_iter().skip(1).step_by(2).collect();
    let rounds: Vec<&[u64]> = calls.chunks(names.len()).collect();
    let figure = |(n, path): (usize, paths::HotPath)| {
        let least = rounds.iter().map(|round| round[n]).fold(u64::MAX, u64::min);
        RegressFigure::new(format!("hot.{}", path.name), least as f64 / f64::from(CALLS))
    };
    Ok(names.into_iter().enumerate().map(figure).collect())
}

/// Calls each of them between two marks.
pub(crate) fn run() {
    for mut path in (0..ROUNDS).flat_map(|_| paths::all()) {
        // The first call differs: it allocates.
        (path.step)();
        callgrind_mark();
        (0..CALLS).for_each(|_| (path.step)());
        callgrind_mark();
    }
}

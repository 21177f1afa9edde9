//! The pure functions of the bench `hot`, counted.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::callgrind::{Counts, OWN_MARK, callgrind_mark};
use crate::{Figure, own_program, paths};

/// How this program is told to call them, under callgrind.
pub(crate) const COMMAND: &str = "hot";
/// Calls of each function.
const CALLS: u32 = 200;

/// What they cost: instructions per call.
pub(crate) fn count() -> Result<Vec<Figure>> {
    let mut counts = Counts::new()?;
    let mut command: Command = counts.command(own_program()?, OWN_MARK);
    let status = command.arg(COMMAND).status()?;
    ensure!(status.success(), "the hot paths under callgrind: {status}");
    let (parts, names) = (counts.parts()?, paths::all());
    ensure!(parts.len() == 2 * names.len(), "{} parts", parts.len());
    let calls = parts.iter().skip(1).step_by(2);
    let figure = |(path, &part): (paths::Path, &u64)| {
        Figure::new(format!("hot.{}", path.name), part as f64 / f64::from(CALLS))
    };
    Ok(names.into_iter().zip(calls).map(figure).collect())
}

/// Calls each of them between two marks.
pub(crate) fn run() {
    for mut path in paths::all() {
        // The first call is another one: it finds nothing allocated.
        (path.step)();
        callgrind_mark();
        (0..CALLS).for_each(|_| (path.step)());
        callgrind_mark();
    }
}

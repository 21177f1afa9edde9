//! The committed baseline of figures, and their tolerances.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use crate::RegressFigure;

/// Path of the file, beside this one.
const FILE: &str = "benches/regress/baseline.toml";
const FILE_HEADER: &str = "# What the hot paths cost. Written by `make bench-regress BLESS=1`, judged by `make bench-regress`.\n\
    # hot: instructions per call. server, redis: instructions per job. redis.time: thousandths of the yardstick.\n";
/// Tolerances by prefix of a figure's name, about twice the difference between runs of one build on a busy machine.
/// The count of a pure function is constant except for the seeds of hash tables. A server also reads clocks, and its
/// client's timing varies. Redis has seeds and clocks, too. Times are imprecise.
const TOLERANCES: [(&str, f64); 4] =
    [("redis.time.", 0.75), ("hot.", 0.02), ("redis.", 0.05), ("server.", 0.05)];
/// Tolerance for our code with another compiler than that of the baseline.
const OTHER_COMPILER: f64 = 0.2;

/// The figures of the baseline and its compiler.
#[derive(Deserialize)]
pub(crate) struct Baseline {
    rustc: String,
    figures: BTreeMap<String, f64>,
}

/// Relation of a figure to the baseline.
pub(crate) enum BaselineVerdict {
    Within,
    /// The baseline has no such figure.
    NotInBaseline,
    /// Slower, or so much faster that the baseline would hide the next regression.
    OutOfTolerance,
}

// === impl BaselineVerdict ===

impl BaselineVerdict {
    pub(crate) fn is_within(&self) -> bool {
        matches!(self, BaselineVerdict::Within)
    }
}

// === impl Baseline ===

impl Baseline {
    pub(crate) fn read() -> Result<Baseline> {
        let text = fs::read_to_string(file()).context(FILE)?;
        toml::from_str(&text).context(FILE)
    }

    /// Writes these figures as the baseline.
    pub(crate) fn write(rustc: &str, figures: &[RegressFigure]) -> Result<()> {
        let mut text = format!("{FILE_HEADER}rustc = {rustc:?}\n\n[figures]\n");
        for figure in figures {
            writeln!(text, "\"{}\" = {:.2}", figure.name, figure.value)?;
        }
        Ok(fs::write(file(), text)?)
    }

    /// Returns figures of the baseline that no longer exist.
    pub(crate) fn unmeasured(&self, figures: &[RegressFigure]) -> Vec<&str> {
        let measured = |name: &str| figures.iter().any(|figure| figure.name == name);
        self.figures.keys().map(String::as_str).filter(|name| !measured(name)).collect()
    }

    /// Returns the figure of that name, if there is one.
    pub(crate) fn value(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// Returns the one of two measurements of a figure that is nearer to its value here.
    pub(crate) fn nearer(&self, one: RegressFigure, other: RegressFigure) -> RegressFigure {
        let Some(before) = self.value(&one.name) else { return one };
        let off = |figure: &RegressFigure| (figure.value - before).abs();
        if off(&other) < off(&one) { other } else { one }
    }

    pub(crate) fn judge(&self, figure: &RegressFigure, rustc: &str) -> BaselineVerdict {
        let Some(before) = self.value(&figure.name) else { return BaselineVerdict::NotInBaseline };
        let off = (figure.value / before - 1.0).abs();
        if off <= self.tolerance(&figure.name, rustc) {
            BaselineVerdict::Within
        } else {
            BaselineVerdict::OutOfTolerance
        }
    }

    fn tolerance(&self, name: &str, rustc: &str) -> f64 {
        let known = TOLERANCES.iter().find(|(begin, _)| name.starts_with(begin));
        let tolerance = known.map_or(0.0, |(_, tolerance)| *tolerance);
        let is_compiled_by_others = name.starts_with("redis.");
        let same = is_compiled_by_others || self.rustc == rustc;
        if same { tolerance } else { tolerance.max(OTHER_COMPILER) }
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)
}

//! Figures of all rounds, folded, beside their targets: a table for people, one JSON line for
//! machines.

use std::collections::BTreeMap;
use std::io::{Result, Write};

use serde_json::{Value, json};

use crate::disk::Fsync;
use crate::percentile::percentile;

/// What a figure is measured against.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// No target: the figure is for information.
    None,
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

/// How the rounds become one value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fold {
    /// The middle one.
    Median,
    /// The smallest: for what must never go below.
    Least,
    /// The largest: for what must never go above.
    Most,
}

/// One result of one round.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    name: &'static str,
    unit: &'static str,
    value: f64,
    fold: Fold,
    target: Target,
}

impl Figure {
    /// A figure whose median counts.
    pub(crate) fn new(name: &'static str, unit: &'static str, value: f64) -> Self {
        Self { name, unit, value, fold: Fold::Median, target: Target::None }
    }

    /// Measured against a target.
    pub(crate) fn against(self, target: Target) -> Self {
        Self { target, ..self }
    }

    /// Folded in another way.
    pub(crate) fn folded(self, fold: Fold) -> Self {
        Self { fold, ..self }
    }
}

/// All rounds of all scenarios.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
    /// Scenarios whose books did not balance, and why.
    pub(crate) broken: Vec<String>,
}

#[derive(Debug)]
struct Row {
    scenario: &'static str,
    figure: Figure,
    values: Vec<f64>,
}

impl Report {
    /// Adds one round of a scenario.
    pub(crate) fn add(&mut self, scenario: &'static str, figures: Vec<Figure>) {
        for figure in figures {
            let known = |row: &&mut Row| row.scenario == scenario && row.figure.name == figure.name;
            match self.rows.iter_mut().find(known) {
                Some(row) => row.values.push(figure.value),
                None => self.rows.push(Row { scenario, values: vec![figure.value], figure }),
            }
        }
    }

    /// The table.
    pub(crate) fn table(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "{:<10} {:<24} {:>12}  {:<23} target",
            "scenario", "figure", "value", "range"
        )?;
        for row in &self.rows {
            let (least, most) = (row.fold(Fold::Least), row.fold(Fold::Most));
            let range = format!("{} .. {}", digits(least), digits(most));
            let label = format!("{} [{}]", row.figure.name, row.figure.unit);
            let value = digits(row.value());
            writeln!(
                out,
                "{:<10} {label:<24} {value:>12}  {range:<23} {}",
                row.scenario,
                row.verdict()
            )?;
        }
        for broken in &self.broken {
            writeln!(out, "BROKEN {broken}")?;
        }
        Ok(())
    }

    /// The same for machines, with what the figures depend on.
    pub(crate) fn json(&self, rounds: usize, threads: usize, fsync: Fsync) -> Value {
        let mut results: BTreeMap<&str, BTreeMap<&str, Value>> = BTreeMap::new();
        for row in &self.rows {
            let value = json!({
                "value": row.value(), "unit": row.figure.unit, "rounds": row.values,
                "target": row.target(), "met": row.met(),
            });
            results.entry(row.scenario).or_default().insert(row.figure.name, value);
        }
        json!({
            "bench": "load", "rounds": rounds, "client_threads": threads,
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "fsync_us": {"p50": fsync.p50_us, "p99": fsync.p99_us},
            "results": results, "broken": self.broken,
        })
    }
}

impl Row {
    fn value(&self) -> f64 {
        self.fold(self.figure.fold)
    }

    fn fold(&self, fold: Fold) -> f64 {
        let mut values = self.values.clone();
        match fold {
            Fold::Median => percentile(&mut values, 0.5),
            Fold::Least => values.into_iter().fold(f64::INFINITY, f64::min),
            Fold::Most => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn met(&self) -> Option<bool> {
        match self.figure.target {
            Target::None => None,
            Target::AtLeast(bound) => Some(self.value() >= bound),
            Target::AtMost(bound) => Some(self.value() <= bound),
        }
    }

    fn target(&self) -> Option<String> {
        match self.figure.target {
            Target::None => None,
            Target::AtLeast(bound) => Some(format!(">= {}", digits(bound))),
            Target::AtMost(bound) => Some(format!("<= {}", digits(bound))),
        }
    }

    fn verdict(&self) -> String {
        match (self.target(), self.met()) {
            (Some(target), Some(true)) => format!("{target} met"),
            (Some(target), _) => format!("{target} MISSED"),
            _ => "-".to_owned(),
        }
    }
}

fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

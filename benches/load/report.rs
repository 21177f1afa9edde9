//! Figures of all rounds, folded, beside their targets: a table for readers, one JSON line for programs.

use std::collections::BTreeMap;
use std::io::{Result, Write};

use serde_json::{Value, json};

use crate::disk::Fsync;
use crate::percentile::percentile;

/// The target of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FigureTarget {
    /// No target: the figure is for information.
    None,
    /// Minimum.
    AtLeast(f64),
    /// Maximum.
    AtMost(f64),
}

/// The way to fold rounds into one value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RoundAggregate {
    /// Takes the median.
    Median,
    /// Takes the smallest value: for figures that must never go below.
    Least,
    /// Takes the largest value: for figures that must never go above.
    Most,
}

/// A result of one round.
#[derive(Clone, Debug)]
pub(crate) struct LoadFigure {
    name: &'static str,
    unit: &'static str,
    value: f64,
    fold: RoundAggregate,
    target: FigureTarget,
}

impl LoadFigure {
    /// Creates a figure whose median counts.
    pub(crate) fn new(name: &'static str, unit: &'static str, value: f64) -> Self {
        Self { name, unit, value, fold: RoundAggregate::Median, target: FigureTarget::None }
    }

    /// Sets its target.
    pub(crate) fn with_target(self, target: FigureTarget) -> Self {
        Self { target, ..self }
    }

    /// Sets the way in which rounds are folded.
    pub(crate) fn with_aggregate(self, fold: RoundAggregate) -> Self {
        Self { fold, ..self }
    }
}

/// All rounds of all scenarios.
#[derive(Debug, Default)]
pub(crate) struct LoadReport {
    rows: Vec<LoadReportRow>,
    /// Scenarios whose counts did not balance, and the reasons.
    pub(crate) failed_scenarios: Vec<String>,
}

#[derive(Debug)]
struct LoadReportRow {
    scenario: &'static str,
    figure: LoadFigure,
    values: Vec<f64>,
}

impl LoadReport {
    /// Adds one round of a scenario.
    pub(crate) fn add(&mut self, scenario: &'static str, figures: Vec<LoadFigure>) {
        for figure in figures {
            let known = |row: &&mut LoadReportRow| {
                row.scenario == scenario && row.figure.name == figure.name
            };
            match self.rows.iter_mut().find(known) {
                Some(row) => row.values.push(figure.value),
                None => {
                    self.rows.push(LoadReportRow { scenario, values: vec![figure.value], figure })
                }
            }
        }
    }

    /// Writes the table.
    pub(crate) fn table(&self, out: &mut impl Write) -> Result<()> {
        writeln!(
            out,
            "{:<10} {:<24} {:>12}  {:<23} target",
            "scenario", "figure", "value", "range"
        )?;
        for row in &self.rows {
            let (least, most) = (row.fold(RoundAggregate::Least), row.fold(RoundAggregate::Most));
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
        for broken in &self.failed_scenarios {
            writeln!(out, "BROKEN {broken}")?;
        }
        Ok(())
    }

    /// Returns the report as JSON, with the parameters on which the figures depend.
    pub(crate) fn json(&self, rounds: usize, threads: usize, fsync: Fsync) -> Value {
        let mut results: BTreeMap<&str, BTreeMap<&str, Value>> = BTreeMap::new();
        for row in &self.rows {
            let value = json!({
                "value": row.value(), "unit": row.figure.unit, "rounds": row.values,
                "target": row.target(), "met": row.is_target_met(),
            });
            results.entry(row.scenario).or_default().insert(row.figure.name, value);
        }
        json!({
            "bench": "load", "rounds": rounds, "client_threads": threads,
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "fsync_us": {"p50": fsync.p50_us, "p99": fsync.p99_us},
            "results": results, "broken": self.failed_scenarios,
        })
    }
}

impl LoadReportRow {
    fn value(&self) -> f64 {
        self.fold(self.figure.fold)
    }

    fn fold(&self, fold: RoundAggregate) -> f64 {
        let mut values = self.values.clone();
        match fold {
            RoundAggregate::Median => percentile(&mut values, 0.5),
            RoundAggregate::Least => values.into_iter().fold(f64::INFINITY, f64::min),
            RoundAggregate::Most => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
        }
    }

    fn is_target_met(&self) -> Option<bool> {
        match self.figure.target {
            FigureTarget::None => None,
            FigureTarget::AtLeast(bound) => Some(self.value() >= bound),
            FigureTarget::AtMost(bound) => Some(self.value() <= bound),
        }
    }

    fn target(&self) -> Option<String> {
        match self.figure.target {
            FigureTarget::None => None,
            FigureTarget::AtLeast(bound) => Some(format!(">= {}", digits(bound))),
            FigureTarget::AtMost(bound) => Some(format!("<= {}", digits(bound))),
        }
    }

    fn verdict(&self) -> String {
        match (self.target(), self.is_target_met()) {
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

//! Metrics of the process, read at a scrape: its lost log lines, and under the names that every Prometheus client library
//! uses, those of `/proc`; a system without it has none of these.

use std::fs;

use prometheus::core::{Collector, Desc};
use prometheus::proto;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use crate::stderr;

use super::definitions::{
    LOG_LINES_LOST, Metric, MetricKind, PROCESS_CPU, PROCESS_FDS, PROCESS_FDS_MAX, PROCESS_MEMORY,
    PROCESS_START,
};

const METRICS: [&Metric; 6] = [
    &LOG_LINES_LOST,
    &PROCESS_CPU,
    &PROCESS_MEMORY,
    &PROCESS_FDS,
    &PROCESS_FDS_MAX,
    &PROCESS_START,
];

/// Reads the metrics of this process. That of the `prometheus` crate rounds processor time to whole seconds, and needs
/// a second version of rustix.
#[derive(Clone, Debug)]
pub(super) struct ProcessCollector(Vec<Desc>);

/// Fields of `/proc/self/stat`: clock ticks, except for the pages of memory.
#[derive(Debug, PartialEq)]
struct ProcessStat {
    cpu: f64,
    start: f64,
    resident_pages: f64,
}

// === impl ProcessCollector ===

impl ProcessCollector {
    pub(super) fn new() -> ProcessCollector {
        let describe = |metric: &&Metric| {
            Desc::new(metric.name.into(), metric.help.into(), Vec::new(), Default::default())
        };
        let descriptions = METRICS.iter().map(|metric| describe(metric).expect("it is valid"));
        ProcessCollector(descriptions.collect())
    }
}

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.0.iter().collect()
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let mut families = Vec::with_capacity(METRICS.len());
        let mut add =
            |metric, value: Option<f64>| families.extend(value.map(|value| family(metric, value)));
        add(&LOG_LINES_LOST, Some(stderr::lost_lines() as f64));
        let stat = fs::read_to_string("/proc/self/stat").ok();
        if let Some(stat) = stat.as_deref().and_then(parse_stat) {
            let per_second = clock_ticks_per_second() as f64;
            add(&PROCESS_CPU, Some(stat.cpu / per_second));
            add(&PROCESS_MEMORY, Some(stat.resident_pages * page_size() as f64));
            add(&PROCESS_START, boot_time().map(|boot| boot + stat.start / per_second));
        }
        // The open directory is one of them.
        let open = fs::read_dir("/proc/self/fd").ok().map(|files| files.count().saturating_sub(1));
        add(&PROCESS_FDS, open.map(|open| open as f64));
        add(&PROCESS_FDS_MAX, getrlimit(Resource::Nofile).current.map(|max| max as f64));
        families
    }
}

fn family(metric: &Metric, value: f64) -> proto::MetricFamily {
    let mut sample = proto::Metric::default();
    let mut family = proto::MetricFamily::default();
    if matches!(metric.kind, MetricKind::Counter) {
        let mut counter = proto::Counter::default();
        counter.set_value(value);
        sample.set_counter(counter);
        family.set_field_type(proto::MetricType::COUNTER);
    } else {
        let mut gauge = proto::Gauge::default();
        gauge.set_value(value);
        sample.set_gauge(gauge);
        family.set_field_type(proto::MetricType::GAUGE);
    }
    family.set_name(metric.name.to_owned());
    family.set_help(metric.help.to_owned());
    family.set_metric(vec![sample]);
    family
}

/// Reads `/proc/self/stat`; see proc_pid_stat(5). The name of the program, in parentheses, may contain anything.
fn parse_stat(stat: &str) -> Option<ProcessStat> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    // The first one here is field 3 of the manual.
    let field = |number: usize| fields.get(number - 3)?.trim_end().parse::<f64>().ok();
    Some(ProcessStat {
        cpu: field(14)? + field(15)?,
        start: field(22)?,
        resident_pages: field(24)?,
    })
}

/// Returns the time of the start of the system, in seconds since the Unix epoch.
fn boot_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_behind_any_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 500 0 0 0 150 50 0 0 20 0 4 0 9000 10000000 321 18446744073709551615\n";
        let expected = ProcessStat { cpu: 200.0, start: 9_000.0, resident_pages: 321.0 };
        assert_eq!(parse_stat(stat), Some(expected));
        assert_eq!(parse_stat("7 (short) S 1"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_plausible_numbers() {
        let families = ProcessCollector::new().collect();
        assert_eq!(families.len(), METRICS.len());
        let value = |metric: &Metric| {
            let family = families.iter().find(|family| family.name() == metric.name).unwrap();
            let sample = &family.get_metric()[0];
            sample.get_counter().get_value() + sample.get_gauge().get_value()
        };
        assert!((1e6..1e11).contains(&value(&PROCESS_MEMORY)), "{}", value(&PROCESS_MEMORY));
        assert!((0.0..86_400.0).contains(&value(&PROCESS_CPU)), "{}", value(&PROCESS_CPU));
        assert!((3.0..value(&PROCESS_FDS_MAX)).contains(&value(&PROCESS_FDS)));
        let started = crate::clock::Clock::system().now().0 as f64 / 1e6 - value(&PROCESS_START);
        assert!((-2.0..86_400.0).contains(&started), "{started} s ago");
    }
}

//! The alert rules in deploy/monitoring: their table in docs/monitoring.md, their copy in the chart, and that each has
//! unit tests in which it fires and ends. `monitoring` runs these tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::{check_part, in_project, page};

const RULES: &str = "deploy/monitoring/alerts.yaml";
const UNIT_TESTS: &str = "deploy/monitoring/alerts_test.yaml";
const CHART: &str = "deploy/chart/files/alerts.yaml";

fn yaml(path: &str) -> Value {
    serde_yaml_ng::from_str(&page(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no list {name} in {value}"))
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no text {name} in {value}"))
}

fn rules() -> Vec<Value> {
    let groups = yaml(RULES);
    list(&groups, "groups").iter().flat_map(|group| list(group, "rules")).cloned().collect()
}

/// Returns a time such as `5m` in seconds.
fn seconds(time: &str) -> u64 {
    let (number, unit) = time.split_at(time.len() - 1);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => panic!("unit of {time}"),
    };
    number.parse::<u64>().unwrap() * unit
}

/// Returns the row of a rule: what it is called, when it fires, what to do.
fn row(rule: &Value) -> String {
    let (name, expr, notes) = (text(rule, "alert"), text(rule, "expr"), &rule["annotations"]);
    let time = rule["for"].as_str().map_or(String::new(), |time| {
        let (number, unit) = time.split_at(time.len() - 1);
        format!(" for {number} {}", if unit == "m" { "min" } else { unit })
    });
    let severity = text(&rule["labels"], "severity");
    let step = text(notes, "description").replace("{{ $labels.topic }}", "TOPIC");
    let (file, heading) = text(notes, "runbook").split_once('#').expect("a page and a heading");
    let link = match file.strip_prefix("docs/").expect("a page in docs") {
        "monitoring.md" => format!("#{heading}"),
        page => format!("{page}#{heading}"),
    };
    let more = heading.replace('-', " ");
    format!("| `{name}`, {severity} | `{expr}`{time} | {step} See [{more}]({link}). |\n")
}

#[test]
fn the_page_lists_every_alert() {
    let mut table = "| alert | expression | first step |\n| --- | --- | --- |\n".to_owned();
    for rule in rules() {
        table.push_str(&row(&rule));
    }
    check_part("docs/monitoring.md", "alerts", &table);
}

#[test]
fn the_chart_has_the_same_alerts() {
    if page(CHART) == page(RULES) {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "a switch for people who run this test")]
    let bless = std::env::var("RINGQ_BLESS").is_ok();
    assert!(bless, "{CHART} is not a copy of {RULES}; RINGQ_BLESS=1 writes it");
    std::fs::copy(in_project(RULES), in_project(CHART)).unwrap();
}

/// Alerts that are expected at one time of a unit test.
struct Expectation {
    at: u64,
    fires: bool,
}

/// Returns what is wrong with the checks of an alert in one unit test, in which it should be quiet, fire and end.
fn mistake(rule: &Value, checks: &[Expectation]) -> Option<&'static str> {
    if !checks.is_sorted_by_key(|check| check.at) {
        return Some("is checked at times that do not rise");
    }
    let fires = checks.iter().position(|check| check.fires).filter(|fires| *fires > 0);
    let (Some(fires), Some(Expectation { fires: false, .. })) = (fires, checks.last()) else {
        return Some("is not quiet, firing and quiet again");
    };
    // One check is within the time that the expression has to hold, so that the time is tested, too.
    let time = rule["for"].as_str().map_or(u64::MAX, seconds);
    let (before, at) = (checks[fires - 1].at, checks[fires].at);
    (at - before > time.saturating_mul(2)).then_some("has no check shortly before it fires")
}

#[test]
fn every_alert_has_a_unit_test_in_which_it_is_quiet_fires_and_ends() {
    let tests = yaml(UNIT_TESTS);
    // Of each alert, the checks of each unit test that has some.
    let mut expected: BTreeMap<String, Vec<Vec<Expectation>>> = BTreeMap::new();
    for test in list(&tests, "tests") {
        let mut checks: BTreeMap<&str, Vec<Expectation>> = BTreeMap::new();
        for check in test["alert_rule_test"].as_array().into_iter().flatten() {
            let fires = !list(check, "exp_alerts").is_empty();
            let at = seconds(text(check, "eval_time"));
            checks.entry(text(check, "alertname")).or_default().push(Expectation { at, fires });
        }
        for (name, checks) in checks {
            expected.entry(name.to_owned()).or_default().push(checks);
        }
    }
    let mut mistakes = String::new();
    for rule in rules() {
        let name = text(&rule, "alert");
        let tests = expected.remove(name).unwrap_or_default();
        let found: Vec<_> = tests.iter().map(|checks| mistake(&rule, checks)).collect();
        if found.iter().all(Option::is_some) {
            writeln!(mistakes, "{name} has no good unit test: {found:?}").unwrap();
        }
    }
    assert!(mistakes.is_empty(), "{UNIT_TESTS}:\n{mistakes}");
    assert!(expected.is_empty(), "{UNIT_TESTS} tests alerts that do not exist");
}

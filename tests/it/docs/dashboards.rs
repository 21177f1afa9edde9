//! The Grafana dashboards in deploy/monitoring: written by their script, complete, and about metrics that exist.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::{in_project, page};

const DASHBOARDS: [&str; 3] = ["overview", "topic", "shard"];

fn dashboard(name: &str) -> Value {
    serde_json::from_str(&page(&format!("deploy/monitoring/{name}.json"))).unwrap()
}

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row")
}

/// Returns the names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let base = |name: &'_ str| {
        ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end).map(str::len))
    };
    let named = words.filter(|word| word.starts_with("ringq_") || word.starts_with("process_"));
    named.map(|name| &name[..base(name).unwrap_or(name.len())]).collect()
}

#[test]
fn the_dashboards_are_those_of_their_script() {
    let dir = tempfile::tempdir().unwrap();
    let script = in_project("deploy/monitoring/dashboards.py");
    let output = match Command::new("python3").arg(script).arg(dir.path()).output() {
        Err(error) => {
            assert!(!crate::harness::in_ci(), "python3 is missing: {error}");
            return eprintln!("skipped: python3 is missing, .ci/install-test-tools gets it");
        }
        Ok(output) => output,
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in DASHBOARDS {
        let written = std::fs::read_to_string(dir.path().join(format!("{name}.json"))).unwrap();
        for place in ["deploy/monitoring", "deploy/chart/files/dashboards"] {
            let path = format!("{place}/{name}.json");
            assert!(written == page(&path), "{path} is old: run deploy/monitoring/dashboards.py");
        }
    }
}

#[test]
fn every_panel_can_be_imported_and_read() {
    let mut uids = BTreeSet::new();
    for name in DASHBOARDS {
        let dashboard = dashboard(name);
        assert!(uids.insert(dashboard["uid"].as_str().unwrap().to_owned()));
        assert!(dashboard["id"].is_null(), "{name}: an import chooses the id");
        let mut titles = BTreeSet::new();
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().unwrap();
            assert!(titles.insert(title), "{name}: two panels {title}");
            assert!(panel["description"].as_str().is_some_and(|text| text.len() > 20), "{title}");
            assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            let targets = panel["targets"].as_array().unwrap();
            let legends: BTreeSet<_> =
                targets.iter().map(|target| target["legendFormat"].as_str()).collect();
            assert_eq!(legends.len(), targets.len(), "{title}: queries with the same legend");
            for target in targets {
                let expr = target["expr"].as_str().unwrap();
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
                let series = metrics_in(expr).len();
                assert!(series == 0 || expr.contains("job=\"$job\""), "{title}: {expr}");
            }
        }
    }
}

/// Metrics in rules and dashboards exist, and each metric of ringq is in a panel or a rule.
#[test]
fn rules_and_dashboards_name_the_metrics_of_the_page() {
    let monitoring = page("docs/monitoring.md");
    let (_, table) = monitoring.split_once("<!-- metrics: begin").unwrap();
    let (table, _) = table.split_once("<!-- metrics: end").unwrap();
    let names = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let known: BTreeSet<&str> = names.map(|(name, _)| name).collect();
    let texts: Vec<String> = DASHBOARDS
        .iter()
        .map(|name| {
            let dashboard = dashboard(name);
            let targets = panels(&dashboard).flat_map(|panel| panel["targets"].as_array().unwrap());
            targets.map(|target| target["expr"].as_str().unwrap().to_owned() + "\n").collect()
        })
        .chain([page("deploy/monitoring/alerts.yaml")])
        .collect();
    let used: BTreeSet<&str> = texts.iter().flat_map(|text| metrics_in(text)).collect();
    let unknown: Vec<_> = used.difference(&known).collect();
    assert!(unknown.is_empty(), "no such metrics: {unknown:?}");
    // The state of the breaker is that of the shard; the start time is for `time() - …` by hand.
    let by_hand = ["ringq_shard_breaker_open", "process_start_time_seconds"];
    let unused: Vec<_> = known.difference(&used).filter(|name| !by_hand.contains(name)).collect();
    assert!(unused.is_empty(), "in no panel and no rule: {unused:?}");
}

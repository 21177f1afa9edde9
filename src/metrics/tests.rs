use super::definitions::{ALL, MetricKind};
use super::*;

/// Returns metrics in which most things were counted.
fn used() -> Metrics {
    let metrics = Metrics::new();
    metrics.enqueued("mail", "created", 2);
    metrics.delivered("mail", "stream", 2);
    metrics.settled("mail", "succeeded", 1);
    metrics.lag(Duration::from_millis(3));
    metrics.run(Duration::from_secs(2));
    metrics.rpc("Enqueue", "OK", Duration::from_millis(1));
    metrics.set_streams(1);
    metrics.set_credit_waiting(15);
    let jobs = [("ready", 4), ("running", 1)];
    let oldest_ready_age = Some(Duration::from_millis(1_500));
    metrics.set_topics(&[TopicGauges { topic: "mail", jobs: &jobs, oldest_ready_age }]);
    let shard = metrics.shard("s0");
    shard.op("claim", Duration::from_micros(200));
    shard.error("claim", "unavailable");
    shard.set_health(false, false, false);
    shard.set_counted(true);
    shard.set_clock_skew(-1.5);
    metrics
}

#[track_caller]
fn assert_has(metrics: &Metrics, line: &str) {
    let text = metrics.render();
    assert!(text.lines().any(|found| found == line), "no {line:?} in\n{text}");
}

#[test]
fn every_metric_is_rendered_with_its_help_and_type() {
    let text = used().render();
    for metric in ALL {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram(_) => "histogram",
        };
        let name = metric.name;
        assert!(text.contains(&format!("# HELP {name} {}\n", metric.help)), "{name}\n{text}");
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{name}\n{text}");
    }
}

#[test]
fn names_have_their_unit_and_buckets_rise() {
    for metric in ALL {
        let total = matches!(metric.kind, MetricKind::Counter);
        assert_eq!(metric.name.ends_with("_total"), total, "{}", metric.name);
        let seconds = metric.unit == metrics::Unit::Seconds;
        assert_eq!(metric.name.ends_with("_seconds"), seconds, "{}", metric.name);
        if let MetricKind::Histogram(buckets) = metric.kind {
            assert!(buckets.is_sorted_by(|a, b| a < b), "{}", metric.name);
        }
    }
}

#[test]
fn values_arrive() {
    let metrics = used();
    for line in [
        r#"ringq_jobs_enqueued_total{topic="mail",outcome="created"} 2"#,
        r#"ringq_jobs_delivered_total{topic="mail",mode="stream"} 2"#,
        r#"ringq_jobs_settled_total{topic="mail",outcome="succeeded"} 1"#,
        r#"ringq_job_lag_seconds_bucket{le="0.0025"} 0"#,
        r#"ringq_job_lag_seconds_bucket{le="0.005"} 1"#,
        r#"ringq_job_run_seconds_count 1"#,
        r#"ringq_jobs{topic="mail",state="ready"} 4"#,
        r#"ringq_oldest_ready_age_seconds{topic="mail"} 1.5"#,
        r#"ringq_stream_credit_waiting 15"#,
        r#"ringq_store_op_seconds_count{shard="s0",op="claim"} 1"#,
        r#"ringq_store_errors_total{shard="s0",op="claim",reason="unavailable"} 1"#,
        r#"ringq_shard_up{shard="s0"} 1"#,
        r#"ringq_shard_counted{shard="s0"} 1"#,
        r#"ringq_shard_clock_skew_seconds{shard="s0"} -1.5"#,
        r#"ringq_rpc_seconds_count{method="Enqueue",code="OK"} 1"#,
    ] {
        assert_has(&metrics, line);
    }
}

#[test]
fn topics_beyond_the_maximum_share_their_series() {
    let metrics = Metrics::new();
    for n in 0..TOPICS_MAX {
        metrics.enqueued(&format!("t{n}"), "created", 1);
    }
    for n in 0..50 {
        metrics.enqueued(&format!("more{n}"), "created", 1);
    }
    metrics.enqueued("t0", "created", 1);
    assert_has(&metrics, r#"ringq_jobs_enqueued_total{topic="_other",outcome="created"} 50"#);
    assert_has(&metrics, r#"ringq_jobs_enqueued_total{topic="t0",outcome="created"} 2"#);
    let rendered = metrics.render();
    let series = rendered.lines().filter(|line| line.starts_with("ringq_jobs_enqueued_total{"));
    assert_eq!(series.count(), TOPICS_MAX + 1);

    let secs = |n| Some(Duration::from_secs(n));
    metrics.set_topics(&[
        TopicGauges { topic: "more1", jobs: &[("ready", 2)], oldest_ready_age: secs(9) },
        TopicGauges { topic: "more2", jobs: &[("ready", 3)], oldest_ready_age: secs(4) },
    ]);
    assert_has(&metrics, r#"ringq_jobs{topic="_other",state="ready"} 5"#);
    assert_has(&metrics, r#"ringq_oldest_ready_age_seconds{topic="_other"} 9"#);
}

#[tokio::test(start_paused = true)]
async fn a_topic_takes_the_series_of_the_one_that_was_idle_longest() {
    let metrics = Metrics::new();
    let count = |topic: &str| metrics.enqueued(topic, "created", 1);
    for n in 0..TOPICS_MAX {
        count(&format!("made-up{n}"));
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    count("orders");
    assert_has(&metrics, r#"ringq_jobs_enqueued_total{topic="_other",outcome="created"} 1"#);
    tokio::time::advance(topic::IDLE_MIN - Duration::from_secs(1)).await;
    count("made-up0");
    let gauges = TopicGauges { topic: "made-up1", jobs: &[("ready", 1)], oldest_ready_age: None };
    metrics.set_topics(&[gauges]);
    count("orders");
    assert_has(&metrics, r#"ringq_jobs_enqueued_total{topic="_other",outcome="created"} 2"#);
    tokio::time::advance(Duration::from_secs(1)).await;
    count("orders");
    let text = metrics.render();
    assert_has(&metrics, r#"ringq_jobs_enqueued_total{topic="orders",outcome="created"} 1"#);
    for (topic, stays) in [("made-up0", true), ("made-up1", true), ("made-up2", false)] {
        assert_eq!(text.contains(&format!("topic=\"{topic}\",")), stays, "{topic}");
    }
    assert_eq!(metrics.topics().len(), TOPICS_MAX);
    // Empty topics take no place from others.
    let names: Vec<_> = (0..99).map(|n| format!("empty{n}")).collect();
    let empty = |name| TopicGauges { topic: name, jobs: &[("ready", 0)], oldest_ready_age: None };
    let gauges: Vec<_> = names.iter().map(|name| empty(name.as_str())).collect();
    tokio::time::advance(2 * topic::IDLE_MIN).await;
    metrics.set_topics(&gauges);
    assert!(metrics.topics().iter().any(|topic| **topic == *"orders"));
}

#[test]
fn gauges_of_a_topic_that_is_gone_fall_to_zero() {
    let metrics = used();
    metrics.set_topics(&[]);
    assert_has(&metrics, r#"ringq_jobs{topic="mail",state="ready"} 0"#);
    assert_has(&metrics, r#"ringq_oldest_ready_age_seconds{topic="mail"} 0"#);
}

#[test]
fn two_servers_share_nothing() {
    let (a, b) = (Metrics::new(), Metrics::new());
    a.enqueued("mail", "created", 1);
    assert!(!b.render().contains("mail"));
}

#[test]
fn upkeep_keeps_what_was_recorded() {
    let metrics = used();
    metrics.run_upkeep();
    metrics.lag(Duration::from_millis(3));
    assert_has(&metrics, "ringq_job_lag_seconds_count 2");
}

/// The rows of docs/operations.md between its markers, one for each metric in the order of their definitions.
#[test]
fn the_page_lists_every_metric() {
    let page = include_str!("../../docs/operations.md");
    let rows = ALL.iter().map(|metric| {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram(_) => "histogram",
        };
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        format!("| `{}` | {kind} | {} | {} |\n", metric.name, labels.join(", "), metric.help)
    });
    let table: String = [
        "| metric | type | labels | meaning |\n".to_owned(),
        "| --- | --- | --- | --- |\n".to_owned(),
    ]
    .into_iter()
    .chain(rows)
    .collect();
    let (_, rest) =
        page.split_once("<!-- metrics: begin, generated -->\n").expect("the first marker");
    let (listed, _) = rest.split_once("<!-- metrics: end -->").expect("the last marker");
    assert!(listed == table, "docs/operations.md is not up to date; its table is:\n{table}");
}

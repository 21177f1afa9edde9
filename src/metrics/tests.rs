use super::definitions::MetricKind;
use super::*;

/// Number of series of one topic.
const TOPIC_SERIES: usize = 53;

/// Returns metrics in which most things were counted.
fn used() -> Metrics {
    let metrics = Metrics::new();
    metrics.set_replica("one");
    metrics.enqueued("mail", "created", 2);
    metrics.delivered("mail", "stream", [3, 20].map(Duration::from_millis).into_iter());
    metrics.settled("mail", "succeeded", 1);
    metrics.run_times().record("mail", Duration::from_secs(2));
    metrics.rpc("Enqueue", "OK", Duration::from_millis(1));
    metrics.set_streams(1);
    metrics.connection_refused("grpc", "displaced");
    metrics.tls_handshake_failed("grpc", "plain_text");
    metrics.set_tls_expiry("server", 86_400.0);
    metrics.set_credit_waiting(15);
    let jobs = [("ready", 4), ("running", 1)];
    let oldest_ready_age = Some(Duration::from_millis(1_500));
    metrics.set_topics(&[TopicGauges { topic: "mail", jobs: &jobs, oldest_ready_age }]);
    let identity = metrics.identity("shop");
    identity.call();
    identity.jobs(3, 1_000);
    identity.refused("jobs_per_second");
    metrics.set_namespace_waiting("shop.", 4);
    metrics.set_namespace_stored("shop.", 5_000);
    let shard = metrics.shard("s0");
    shard.op("claim", Duration::from_micros(200));
    shard.error("claim", "unavailable");
    shard.set_health(false, false, false);
    shard.set_counted(true);
    shard.set_clock_skew(-1.5);
    shard.set_bytes(Some(4_096), Some(1 << 40));
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
        let name = metric.name.trim_end_matches("_total");
        for (end, unit) in [("_seconds", "s"), ("_bytes", "By")] {
            assert_eq!(name.ends_with(end), Metrics::unit(metric.name) == unit, "{name}");
        }
        if let MetricKind::Histogram(buckets) = metric.kind {
            assert!(buckets.is_sorted_by(|a, b| a < b), "{}", metric.name);
        }
    }
}

#[test]
fn values_arrive() {
    let metrics = used();
    for line in [
        r#"ringq_jobs_enqueued_total{outcome="created",topic="mail"} 2"#,
        r#"ringq_jobs_delivered_total{mode="stream",topic="mail"} 2"#,
        r#"ringq_jobs_settled_total{outcome="succeeded",topic="mail"} 1"#,
        r#"ringq_jobs_settled_total{outcome="dead",topic="mail"} 0"#,
        r#"ringq_job_lag_seconds_bucket{topic="mail",le="0.001"} 0"#,
        r#"ringq_job_lag_seconds_bucket{topic="mail",le="0.005"} 1"#,
        r#"ringq_job_lag_seconds_bucket{topic="mail",le="0.025"} 2"#,
        r#"ringq_job_run_seconds_count{topic="mail"} 1"#,
        r#"ringq_job_run_seconds_sum{topic="mail"} 2"#,
        r#"ringq_jobs{state="ready",topic="mail"} 4"#,
        r#"ringq_oldest_ready_age_seconds{topic="mail"} 1.5"#,
        r#"ringq_stream_credit_waiting 15"#,
        r#"ringq_identity_calls_total{identity="shop"} 1"#,
        r#"ringq_identity_jobs_total{identity="shop"} 3"#,
        r#"ringq_identity_bytes_total{identity="shop"} 1000"#,
        r#"ringq_identity_refused_total{identity="shop",quota="jobs_per_second"} 1"#,
        r#"ringq_identity_refused_total{identity="shop",quota="streams"} 0"#,
        r#"ringq_namespace_waiting_jobs{namespace="shop."} 4"#,
        r#"ringq_namespace_stored_bytes{namespace="shop."} 5000"#,
        r#"ringq_store_op_seconds_count{op="claim",shard="s0"} 1"#,
        r#"ringq_store_errors_total{op="claim",reason="unavailable",shard="s0"} 1"#,
        r#"ringq_store_errors_total{op="enqueue",reason="STORE_FULL",shard="s0"} 0"#,
        r#"ringq_shard_up{shard="s0"} 1"#,
        r#"ringq_shard_counted{shard="s0"} 1"#,
        r#"ringq_shard_clock_skew_seconds{shard="s0"} -1.5"#,
        r#"ringq_store_bytes{shard="s0"} 4096"#,
        r#"ringq_store_max_bytes{shard="s0"} 1099511627776"#,
        r#"ringq_rpc_seconds_count{code="OK",method="Enqueue"} 1"#,
        concat!("ringq_build_info{replica=\"one\",version=\"", env!("CARGO_PKG_VERSION"), "\"} 1"),
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
    assert_has(&metrics, r#"ringq_jobs_enqueued_total{outcome="created",topic="_other"} 50"#);
    assert_has(&metrics, r#"ringq_jobs_enqueued_total{outcome="created",topic="t0"} 2"#);
    let rendered = metrics.render();
    let created = "ringq_jobs_enqueued_total{outcome=\"created\",";
    assert_eq!(rendered.matches(created).count(), TOPICS_MAX + 1);

    let secs = |n| Some(Duration::from_secs(n));
    metrics.set_topics(&[
        TopicGauges { topic: "more1", jobs: &[("ready", 2)], oldest_ready_age: secs(9) },
        TopicGauges { topic: "more2", jobs: &[("ready", 3)], oldest_ready_age: secs(4) },
    ]);
    assert_has(&metrics, r#"ringq_jobs{state="ready",topic="_other"} 5"#);
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
    assert_has(&metrics, r#"ringq_jobs_enqueued_total{outcome="created",topic="_other"} 1"#);
    tokio::time::advance(topic::IDLE_MIN - Duration::from_secs(1)).await;
    count("made-up0");
    let gauges = TopicGauges { topic: "made-up1", jobs: &[("ready", 1)], oldest_ready_age: None };
    metrics.set_topics(&[gauges]);
    count("orders");
    assert_has(&metrics, r#"ringq_jobs_enqueued_total{outcome="created",topic="_other"} 2"#);
    tokio::time::advance(Duration::from_secs(1)).await;
    count("orders");
    let text = metrics.render();
    assert_has(&metrics, r#"ringq_jobs_enqueued_total{outcome="created",topic="orders"} 1"#);
    // A topic has the six gauges of its jobs once it was read.
    for (topic, series) in
        [("made-up0", TOPIC_SERIES - 6), ("made-up1", TOPIC_SERIES), ("made-up2", 0)]
    {
        assert_eq!(text.matches(&format!("topic=\"{topic}\"")).count(), series, "{topic}");
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
    assert_has(&metrics, r#"ringq_jobs{state="ready",topic="mail"} 0"#);
    assert_has(&metrics, r#"ringq_oldest_ready_age_seconds{topic="mail"} 0"#);
}

#[test]
fn two_servers_share_nothing() {
    let (a, b) = (Metrics::new(), Metrics::new());
    a.enqueued("mail", "created", 1);
    assert!(!b.render().contains("mail"));
}

#[test]
fn a_shard_that_does_not_answer_has_no_size() {
    let metrics = used();
    metrics.shard("s0").set_bytes(Some(10), None);
    assert_has(&metrics, r#"ringq_store_bytes{shard="s0"} 10"#);
    assert!(!metrics.render().contains("ringq_store_max_bytes"));
    metrics.shard("s0").set_bytes(None, None);
    assert!(!metrics.render().contains("ringq_store_bytes"));
}

#[test]
fn shards_and_calls_whose_names_read_the_same_in_a_row_are_apart() {
    let metrics = Metrics::new();
    metrics.shard("a").op("unclaim", Duration::from_secs(1));
    metrics.shard("aun").op("claim", Duration::from_secs(1));
    assert_has(&metrics, r#"ringq_store_op_seconds_count{op="unclaim",shard="a"} 1"#);
    assert_has(&metrics, r#"ringq_store_op_seconds_count{op="claim",shard="aun"} 1"#);
}

#[test]
fn the_page_states_the_maximum_number_of_series() {
    let text = used().render();
    assert_eq!(text.matches("topic=\"mail\"").count(), TOPIC_SERIES);
    let max = TOPIC_SERIES * (TOPICS_MAX + 1);
    let max = format!("{TOPIC_SERIES} series each, {},{:03} in all", max / 1_000, max % 1_000);
    let page = include_str!("../../docs/monitoring.md").replace('\n', " ");
    assert!(page.contains(&max), "docs/monitoring.md does not contain {max:?}");
}

/// The rows of docs/monitoring.md between its markers, one for each metric in the order of their definitions.
#[test]
fn the_page_lists_every_metric() {
    let page = include_str!("../../docs/monitoring.md");
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
    assert!(listed == table, "docs/monitoring.md is not up to date; its table is:\n{table}");
}

#[test]
fn gauges_of_topics_are_absent_while_no_shard_answers() {
    let metrics = Metrics::new();
    let read = || {
        let jobs = [("ready", 3)];
        let oldest_ready_age = Some(Duration::from_secs(7));
        metrics.set_topics(&[TopicGauges { topic: "a", jobs: &jobs, oldest_ready_age }]);
    };
    let has = |line: &str| metrics.render().lines().any(|found| found == line);
    for _ in 0..2 {
        read();
        assert!(has(r#"ringq_jobs{state="ready",topic="a"} 3"#), "{}", metrics.render());
        assert!(has(r#"ringq_oldest_ready_age_seconds{topic="a"} 7"#));
        metrics.forget_topics();
        assert!(!metrics.render().contains("\nringq_jobs{"), "{}", metrics.render());
        assert!(!metrics.render().contains("\nringq_oldest_ready_age_seconds{"));
    }
}

//! Servers whose log has a reader that stopped: they serve on, and count the lines that it did not get.

use std::io::{BufRead as _, BufReader};

use crate::harness::{Setup, eventually, full_pipe, http_get, job, take};

/// Calls between two looks at the number of lost lines.
const CALLS: usize = 50;

/// Builds a server that logs some kilobytes with each call.
fn talkative() -> Setup {
    Setup::new().config("log_filter = \"trace\"")
}

/// Returns the value of a series.
pub(super) fn series(metrics: &str, name: &str) -> f64 {
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("no {name} in\n{metrics}")).parse().unwrap()
}

#[tokio::test]
async fn a_full_log_stops_no_call_and_its_lost_lines_are_counted() {
    let (reader, writer) = full_pipe();
    let mut server = talkative().log_to(writer).start().await;
    let client = server.connect().await;
    let mut stream = client.stream(take("t")).await;
    let lost = async || {
        let (status, metrics) = http_get(server.http, "/metrics").await;
        assert_eq!(status, 200);
        Some(series(&metrics, "ringq_log_lines_lost_total")).filter(|lost| *lost > 0.0)
    };
    eventually("lines are lost", async || {
        for number in 0..CALLS {
            client.enqueue(job("t").with_text(number.to_string())).await;
            assert!(client.find("t", "none").await.is_none());
        }
        lost().await
    })
    .await;
    let delivery = stream.next().await;
    client.ack(&delivery.receipt).await;
    assert_eq!(http_get(server.http, "/healthz").await.0, 200);
    // It is read again: what was lost is counted in a line.
    let found = tokio::task::spawn_blocking(move || {
        let mut lines = BufReader::new(reader).lines().map_while(Result::ok);
        let line = lines.find(|line| line.contains("log lines were lost"));
        std::thread::spawn(move || lines.for_each(drop));
        line
    });
    let line = found.await.unwrap().expect("the line of the lost ones");
    let count = line.rsplit_once(" lost=").unwrap().1;
    assert!(line.contains(" WARN ") && count.parse::<u64>().unwrap() > 0, "{line}");
    drop(stream);
    server.terminate();
    assert!(server.exit().await.success());
}

#[tokio::test]
async fn a_server_ends_though_its_log_is_full() {
    let (_reader, writer) = full_pipe();
    let mut server = Setup::new().log_to(writer).start().await;
    server.connect().await.enqueue(job("t")).await;
    server.terminate();
    assert!(server.exit().await.success());
}

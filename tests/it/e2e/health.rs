use ringq::pb::NackAction;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::harness::{Server, Setup, eventually, http_get, job, nack, take, within};

fn service(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

/// Answer of a port to this request of HTTP/1.1.
async fn answer(port: std::net::SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(port).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within("an answer", socket.read_to_string(&mut answer)).await.unwrap();
    answer
}

/// A page whose name points at this machine must not read what a server on it shows.
#[tokio::test]
async fn pages_of_a_loopback_address_are_for_local_names() {
    let server = Server::start().await;
    let everywhere = Setup::new().config("insecure = true").http_listen("0.0.0.0:0").start().await;
    let open = everywhere.ports[1].port();
    for path in ["/", "/healthz", "/readyz", "/metrics", "/nothing"] {
        let get = |host: &str| {
            format!("GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
        };
        let foreign = answer(server.http, &get("evil.example")).await;
        let is_probe = ["/healthz", "/readyz"].contains(&path);
        assert_eq!(foreign.starts_with("HTTP/1.1 403 "), !is_probe, "{path}: {foreign}");
        assert_eq!(foreign.contains("http_listen"), !is_probe, "{foreign}");
        for host in ["localhost", "127.0.0.1:7701", "[::1]:7701"] {
            let local = answer(server.http, &get(host)).await;
            assert!(!local.starts_with("HTTP/1.1 403 "), "{path} {host}: {local}");
        }
        // A probe names its service, or anything.
        let probe = answer(([127, 0, 0, 1], open).into(), &get("ringq.default.svc")).await;
        assert!(!probe.starts_with("HTTP/1.1 403 "), "{path}: {probe}");
    }
}

#[tokio::test]
async fn probes_of_both_ports_answer_while_the_server_serves() {
    let server = Server::start().await;
    let mut health = HealthClient::new(server.connect().await.channel);
    for name in ["", "ringq.v1.QueueService", "ringq.v1.TopicService", "ringq.v1.AdminService"] {
        let answer = health.check(service(name)).await.unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving, "{name}");
    }
    let status = health.check(service("ringq.v1.Nothing")).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    for path in ["/healthz", "/readyz"] {
        let (status, body) = http_get(server.http, path).await;
        assert_eq!(status, 200, "{path}: {body}");
    }
    assert_eq!(http_get(server.http, "/nothing").await.0, 404);

    // A client of one port at the other one.
    let request = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let wrong = answer(server.grpc, request).await;
    assert!(wrong.starts_with("HTTP/1.1 400 ") && wrong.contains("http_listen"), "{wrong}");
    let pages = answer(server.http, request).await;
    assert!(pages.starts_with("HTTP/1.1 200 ") && pages.contains("/healthz"), "{pages}");
}

#[tokio::test]
async fn a_server_that_leaves_is_alive_but_not_ready() {
    let mut server = Setup::new().config("drain_delay = \"1500ms\"").start().await;
    let client = server.connect().await;
    let mut health = HealthClient::new(client.channel.clone());
    let queue = "ringq.v1.QueueService";
    let mut watch = health.watch(service(queue)).await.unwrap().into_inner();
    let first = within("the first status", watch.message()).await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    server.terminate();
    let next = within("the change of status", watch.message()).await.unwrap().unwrap();
    assert_eq!(next.status(), ServingStatus::NotServing);
    eventually("/readyz reports unready", async || {
        (http_get(server.http, "/readyz").await.0 == 503).then_some(())
    })
    .await;
    assert_eq!(http_get(server.http, "/healthz").await.0, 200, "alive until its end");
    // Until load balancers have noticed, it serves as before.
    client.enqueue(job("mail")).await;
    let mut worker = client.stream(take("mail")).await;
    client.ack(&worker.next().await.receipt).await;
    drop((watch, worker));
    assert!(server.exit().await.success());
}

#[tokio::test]
async fn metrics_count_what_happened() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue_all(vec![job("mail"); 3]).await;
    let mut worker = client.stream(take("mail")).await;
    let held = worker.next_many(3).await;
    client.ack(&held[0].receipt).await;
    client.nack(nack(&held[1].receipt, NackAction::DeadLetter)).await;
    let (status, text) = http_get(server.http, "/metrics").await;
    assert_eq!(status, 200);
    let value = |name: &str, labels: &[&str]| -> Option<f64> {
        let mut sum = None;
        for line in text.lines().filter(|line| line.starts_with(name)) {
            let rest = &line[name.len()..];
            let named = rest.starts_with('{') || rest.starts_with(' ');
            if named && labels.iter().all(|label| line.contains(label)) {
                let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
                sum = Some(sum.unwrap_or(0.0) + value);
            }
        }
        sum
    };
    let mail = "topic=\"mail\"";
    for (name, labels, expected) in [
        ("ringq_jobs_enqueued_total", vec![mail], 3.0),
        ("ringq_jobs_delivered_total", vec![mail], 3.0),
        ("ringq_jobs_settled_total", vec![mail, "outcome=\"succeeded\""], 1.0),
        ("ringq_jobs_settled_total", vec![mail, "outcome=\"dead\""], 1.0),
        ("ringq_streams", vec![], 1.0),
        ("ringq_shard_up", vec!["shard=\"s0\""], 1.0),
        ("ringq_jobs", vec![mail, "state=\"running\""], 1.0),
        ("ringq_jobs", vec![mail, "state=\"dead\""], 1.0),
        ("ringq_build_info", vec![env!("CARGO_PKG_VERSION")], 1.0),
    ] {
        assert_eq!(value(name, &labels), Some(expected), "{name} {labels:?}\n{text}");
    }
    for name in ["ringq_job_lag_seconds", "ringq_job_run_seconds", "ringq_store_op_seconds"] {
        assert!(text.contains(&format!("# TYPE {name} ")), "{name}\n{text}");
    }
}

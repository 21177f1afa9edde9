use std::collections::BTreeSet;
use std::net::SocketAddr;

use bytes::Bytes;
use ringq::pb::{GetServerInfoRequest, JobState};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Command;

use crate::harness::{
    JobExt as _, JsonAnswer, JsonBridge, JsonClient, RawCalls, Server, Setup, eventually, framed,
    http_get, in_ci, job, millis, status_json, take, unary_methods, within,
};

const ENQUEUE: &str = "QueueService/Enqueue";
const PULL: &str = "QueueService/Pull";
const ACK: &str = "QueueService/Ack";
const INFO: &str = "AdminService/GetServerInfo";

/// Runs curl for a call with this text; returns its output. `None`: curl is missing; the test prints that and ends.
async fn curl(http: SocketAddr, method: &str, text: &str) -> Option<Value> {
    let url = format!("http://{http}/v1/ringq.v1.{method}");
    let mut command = Command::new("curl");
    command.args(["-sS", "-m", "20", "-H", "content-type: application/json", &url, "-d", text]);
    let Ok(output) = within("curl", command.kill_on_drop(true).output()).await else {
        assert!(!in_ci(), "curl is missing");
        eprintln!("skipped: curl is missing");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Starts a server, and with `has_tls` one behind proxies that add TLS.
async fn start(has_tls: bool) -> Server {
    let setup = Setup::new();
    if has_tls { setup.behind_tls().start().await } else { setup.start().await }
}

/// Returns the text of a raw call, which may be sent in parts.
fn raw(method: &str, text: &str, headers: &str) -> String {
    let length = text.len();
    format!(
        "POST /v1/ringq.v1.{method} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{headers}\r\n{text}"
    )
}

async fn counted(server: &Server, method: &str, code: &str) -> bool {
    let counter = format!(r#"ringq_rpc_seconds_count{{code="{code}",method="{method}"}} 1"#);
    http_get(server.http, "/metrics").await.1.contains(&counter)
}

/// Returns the number of claims so far.
async fn claims(server: &Server) -> u64 {
    let metrics = http_get(server.http, "/metrics").await.1;
    let count = "ringq_store_op_seconds_count{op=\"claim\",shard=\"s0\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(count)).map_or(0, |n| n.parse().unwrap())
}

/// Waits until a Pull has looked for jobs, and so waits for one.
async fn is_waiting(server: &Server, claims_before: u64) {
    eventually("a pull waits", async || (claims(server).await > claims_before).then_some(())).await;
}

/// Returns the reason of an error.
fn reason(answer: &JsonAnswer) -> &str {
    let details = answer.body["details"].as_array().unwrap_or_else(|| panic!("{answer:?}"));
    details.iter().find_map(|detail| detail["reason"].as_str()).unwrap_or_default()
}

/// Returns the delivery of the only job of this answer.
fn delivery(answer: &Value) -> &Value {
    let deliveries = answer["deliveries"].as_array().unwrap_or_else(|| panic!("no job: {answer}"));
    assert_eq!(deliveries.len(), 1, "{answer}");
    &deliveries[0]
}

#[tokio::test]
async fn curl_alone_is_a_producer_and_a_worker() {
    let server = Server::start().await;
    let call = async |method: &str, text: &str| curl(server.http, method, text).await;
    let job = r#"{"job": {"topic": "emails", "payload": {"text": "{\"user\":42}"}}}"#;
    let Some(enqueued) = call(ENQUEUE, job).await else { return };
    assert_eq!(enqueued["outcome"], "ENQUEUE_OUTCOME_CREATED");
    let pull = r#"{"topics": ["emails"], "wait": "10s"}"#;
    let pulled = call(PULL, pull).await.unwrap();
    assert_eq!(delivery(&pulled)["payload"]["text"], "{\"user\":42}");
    let release = json!({"receipt": delivery(&pulled)["receipt"], "action": "NACK_ACTION_RELEASE"});
    let items = |item: Value| json!({"items": [item]}).to_string();
    assert_eq!(call("QueueService/Nack", &items(release)).await.unwrap(), json!({}));
    let pulled = call(PULL, pull).await.unwrap();
    let receipt = &delivery(&pulled)["receipt"];
    let extend = items(json!({"receipt": receipt, "leaseDuration": "60s"}));
    assert_eq!(call("QueueService/Extend", &extend).await.unwrap(), json!({}));
    let ack = items(json!({"receipt": receipt}));
    assert_eq!(call(ACK, &ack).await.unwrap(), json!({}));
    let get = json!({"topic": "emails", "id": enqueued["id"]}).to_string();
    assert_eq!(call("QueueService/Get", &get).await.unwrap()["code"], 5, "it is gone");
}

/// Every RPC with an empty request, and a few others, has the answer of gRPC.
#[tokio::test]
async fn empty_requests_of_every_rpc_have_the_answers_of_grpc() {
    let server = Server::start().await;
    let bridge = JsonBridge::start(server.http).await;
    let mut codes = BTreeSet::new();
    for method in unary_methods() {
        let name = format!("{}/{}", method.parent_service().name(), method.name());
        let mut answers = Vec::new();
        for address in [server.grpc, bridge.grpc] {
            let mut calls = RawCalls::connect(address, 65_535).await;
            let answer = calls.begin(&name, Bytes::from_static(&[0; 5]), true).await.unwrap();
            let status = tonic::Status::from_header_map(answer.headers());
            codes.insert(status.as_ref().map_or(0, |status| i32::from(status.code())));
            answers.push(status.map(|status| status_json(&status)));
        }
        assert_eq!(answers[0], answers[1], "{name}");
    }
    assert_eq!(codes, BTreeSet::from([0, 3]), "both answers and errors were compared");
}

#[tokio::test]
async fn what_is_no_call_is_refused_with_its_status() {
    let server = Server::start().await;
    let mut client = JsonClient::connect(server.http).await;
    let json = "application/json";
    for (method, kind, text, status, code) in [
        (ENQUEUE, json, "{", 400, 3),
        (ENQUEUE, json, r#"{"jop": {}}"#, 400, 3),
        (ENQUEUE, json, r#"{"job": {"topic": 7}}"#, 400, 3),
        (ENQUEUE, "application/x-www-form-urlencoded", "{}", 415, 3),
        (ENQUEUE, "application/grpc", "\0\0\0\0\0", 415, 3),
        ("QueueService/Stream", json, r#"{"topics": ["a"]}"#, 501, 12),
        ("QueueService/Nothing", json, "{}", 404, 12),
        ("Nothing/Enqueue", json, "{}", 404, 12),
    ] {
        let answer = client.send(method, text, &[("content-type", kind)]).await;
        assert_eq!((answer.status, &answer.body["code"]), (status, &json!(code)), "{answer:?}");
        assert_eq!(answer.headers["content-type"], json);
    }
    let answer = client.send(ENQUEUE, "{}", &[("origin", "http://page.example")]).await;
    assert_eq!((answer.status, &answer.body["code"]), (403, &json!(7)), "{answer:?}");
    let deep = "[".repeat(1 << 20);
    assert_eq!(client.send(ENQUEUE, deep, &[]).await.status, 400);
    let answer = client.send(INFO, "", &[("x-request-id", "mine")]).await;
    assert_eq!((answer.status, answer.headers["x-request-id"].to_str().unwrap()), (200, "mine"));

    let mut socket = TcpStream::connect(server.http).await.unwrap();
    let get = "GET /v1/ringq.v1.QueueService/Get HTTP/1.0\r\n\r\n";
    socket.write_all(get.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains(" 405 ") && answer.contains("\r\nallow: POST\r\n"), "{answer}");
}

/// Nothing is kept of a text that is too large, whether its length is known or not.
#[tokio::test]
async fn large_texts_are_refused_like_large_messages() {
    let server = Server::start().await;
    let over = |bytes: usize| format!(r#"{{"topic": "{}"}}"#, "a".repeat(bytes));
    for (bytes, limit) in [(4 << 20, "4194304"), (8 << 20, "8388608")] {
        let mut client = JsonClient::connect(server.http).await;
        let answer = client.send("QueueService/Get", over(bytes), &[]).await;
        assert_eq!((answer.status, reason(&answer)), (413, "TOO_LARGE"), "{answer:?}");
        assert_eq!(answer.body["details"][0]["metadata"]["limit"], limit);
    }
    let mut socket = TcpStream::connect(server.http).await.unwrap();
    let head = "POST /v1/ringq.v1.QueueService/Get HTTP/1.1\r\nhost: x\r\n\
                content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    socket.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("100000\r\n{}\r\n", " ".repeat(1 << 20));
    let (mut reader, mut writer) = socket.into_split();
    let writing = tokio::spawn(async move {
        for _ in 0..64 {
            writer.write_all(chunk.as_bytes()).await?;
        }
        Ok::<(), std::io::Error>(())
    });
    let mut answer = [0; 12];
    within("an answer", reader.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    assert!(within("its end", writing).await.unwrap().is_err(), "the rest is not read");
}

/// A refusal reaches a client that is still sending, and what it sends is read, so that its connection lives.
#[tokio::test]
async fn a_client_that_sends_a_large_text_gets_its_refusal_and_keeps_its_connection() {
    for has_tls in [false, true] {
        let server = start(has_tls).await;
        client_that_sends_a_large_text_gets_its_refusal_and_keeps_its_connection(&server).await;
    }
}

async fn client_that_sends_a_large_text_gets_its_refusal_and_keeps_its_connection(server: &Server) {
    let (socket, bytes) = (server.open_http(TcpStream::connect(server.ports[1])).await, 12 << 20);
    let (mut reader, mut writer) = tokio::io::split(socket);
    let head = format!(
        "POST /v1/ringq.v1.QueueService/Get HTTP/1.1\r\nhost: x\r\n\
         content-type: application/json\r\ncontent-length: {bytes}\r\n\r\n "
    );
    writer.write_all(head.as_bytes()).await.unwrap();
    writer.flush().await.unwrap();
    let mut answer = [0; 12];
    within("an answer", reader.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
    writer.write_all(&vec![b' '; bytes - 1]).await.unwrap();
    writer.write_all(raw(INFO, "{}", "connection: close\r\n").as_bytes()).await.unwrap();
    writer.flush().await.unwrap();
    let mut rest = String::new();
    within("the next answer", reader.read_to_string(&mut rest)).await.unwrap();
    assert!(rest.contains("HTTP/1.1 200 OK"), "{rest}");
}

/// Calls in flight are counted with those of gRPC.
#[tokio::test]
async fn the_limit_on_requests_is_that_of_grpc() {
    let limits = "max_concurrent_requests = 1\nrequest_timeout = \"60s\"";
    let server = Setup::new().config(limits).start().await;
    let mut rude = RawCalls::connect(server.grpc, 0).await;
    let unread = rude.begin(INFO, framed(&GetServerInfoRequest {}), true).await.unwrap();
    let mut client = JsonClient::connect(server.http).await;
    let answer = client.call(INFO, &json!({})).await;
    assert_eq!(answer.status, 429, "{answer:?}");
    assert_eq!(answer.headers["retry-after"], "1");
    assert_eq!(reason(&answer), "RATE_LIMITED");
    drop(unread);
    drop(rude);
    eventually("there is room", async || {
        (client.call(INFO, &json!({})).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_connection_serves_many_calls_and_outlives_their_deadlines() {
    let server = Server::start().await;
    let grpc = server.connect().await;
    let mut client = JsonClient::connect(server.http).await;
    grpc.enqueue(job("large").with_bytes(900 << 10)).await;
    // A large answer, which ends when it is written; its deadline passes after that.
    let pull = json!({"topics": ["large"], "wait": "10s"}).to_string();
    let pulled = client.send(PULL, pull, &[("grpc-timeout", "6S")]).await;
    let receipt = &delivery(&pulled.body)["receipt"];
    tokio::time::sleep(millis(6_100)).await;
    assert_eq!(client.ok(ACK, &json!({"items": [{"receipt": receipt}]})).await, json!({}));
}

#[tokio::test]
async fn calls_over_http2_and_pipelined_ones_are_served() {
    let server = Server::start().await;
    let mut socket = TcpStream::connect(server.http).await.unwrap();
    let call = raw(ENQUEUE, r#"{"job": {"topic": "mail"}}"#, "");
    let last = raw(INFO, "{}", "connection: close\r\n");
    socket.write_all([call.repeat(20), last].concat().as_bytes()).await.unwrap();
    let mut answers = String::new();
    within("the answers", socket.read_to_string(&mut answers)).await.unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 21);
    assert_eq!(server.connect().await.stats("mail").await.ready, 20);
    let url = format!("http://{}/v1/ringq.v1.{INFO}", server.http);
    let curl = Command::new("curl")
        .args([
            "-sS",
            "--http2-prior-knowledge",
            "-H",
            "content-type: application/json",
            "-d",
            "",
            &url,
        ])
        .output();
    if let Ok(output) = within("curl", curl).await {
        let info: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(info["store"], "sqlite", "{info}");
    }
}

/// A client that goes during its wait takes no job, and one that goes with the answer on its way loses none.
#[tokio::test]
async fn a_pull_whose_client_goes_takes_no_job() {
    // Bytes behind the request are not read during the call, and must not hide that the client is gone.
    let more = ["", "\n", "\r\n", "x", "GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"];
    for (more, has_tls) in more.into_iter().flat_map(|more| [(more, false), (more, true)]) {
        let server = start(has_tls).await;
        let client = server.connect().await;
        let mut socket = server.open_http(TcpStream::connect(server.ports[1])).await;
        let pull = raw(PULL, r#"{"topics": ["mail"], "wait": "30s"}"#, "") + more;
        socket.write_all(pull.as_bytes()).await.unwrap();
        socket.flush().await.unwrap();
        socket.flush().await.unwrap();
        is_waiting(&server, 0).await;
        drop(socket);
        eventually("it is cancelled", async || {
            counted(&server, "Pull", "CANCELLED").await.then_some(())
        })
        .await;
        client.enqueue(job("mail")).await;
        let held = client.pull_one("mail").await;
        let is_first = (held.attempt, held.delivery) == (1, 1);
        assert!(is_first, "no client had it before: {more:?}, tls: {has_tls}");
        client.ack(&held.receipt).await;
    }
}

/// A job that comes at the moment at which the client goes is not sent to it.
#[tokio::test]
async fn a_job_is_not_sent_to_a_client_that_has_just_gone() {
    for has_tls in [false, true] {
        let server = start(has_tls).await;
        job_is_not_sent_to_a_client_that_has_just_gone(&server).await;
    }
}

async fn job_is_not_sent_to_a_client_that_has_just_gone(server: &Server) {
    let client = server.connect().await;
    for _ in 0..20 {
        let mut socket = server.open_http(TcpStream::connect(server.ports[1])).await;
        let pull = raw(PULL, r#"{"topics": ["mail"], "wait": "5s"}"#, "") + "\n";
        socket.write_all(pull.as_bytes()).await.unwrap();
        socket.flush().await.unwrap();
        socket.flush().await.unwrap();
        drop(socket);
        client.enqueue(job("mail")).await;
        let held = client.pull_one("mail").await;
        assert_eq!((held.attempt, held.delivery), (1, 1), "no client had it before");
        client.ack(&held.receipt).await;
    }
}

/// A client that does not read loses its connection at the deadline, and the job is free again, uncounted.
#[tokio::test]
async fn a_pull_whose_answer_is_not_read_takes_no_job() {
    for has_tls in [false, true] {
        let server = start(has_tls).await;
        pull_whose_answer_is_not_read_takes_no_job(&server).await;
    }
}

async fn pull_whose_answer_is_not_read_takes_no_job(server: &Server) {
    let client = server.connect().await;
    let id = client.enqueue(job("mail").with_bytes(1 << 20).with_lease(millis(600_000))).await.id;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    let mut socket = server.open_http(socket.connect(server.ports[1])).await;
    let pull = raw(PULL, r#"{"topics": ["mail"]}"#, "grpc-timeout: 2S\r\n");
    socket.write_all(pull.as_bytes()).await.unwrap();
    socket.flush().await.unwrap();
    client.until("mail", &id, JobState::Running).await;
    client.until("mail", &id, JobState::Ready).await;
    let held = client.pull_one("mail").await;
    assert_eq!((held.attempt, held.delivery), (1, 1), "the first one was not counted");
    assert!(counted(server, "Pull", "DEADLINE_EXCEEDED").await);
    drop(socket);
}

/// A server that ends finishes the calls of its HTTP port as it does those of gRPC.
#[tokio::test]
async fn jobs_that_json_calls_hold_are_settled_while_the_server_drains() {
    let limits = "shutdown_grace = \"30s\"";
    let mut server = Setup::new().config(limits).start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_retention(millis(600_000))).await;
    let mut json = JsonClient::connect(server.http).await;
    let pulled = json.ok(PULL, &json!({"topics": ["mail"]})).await;
    // The server waits for the job of a stream; the lease of a Pull outlives its call.
    let mut worker = client.stream(take("slow")).await;
    client.enqueue(job("slow")).await;
    let slow = worker.next().await;
    let before = claims(&server).await;
    let mut waits = JsonClient::connect(server.http).await;
    let waiting = tokio::spawn(async move {
        waits.call(PULL, &json!({"topics": ["nothing"], "wait": "30s"})).await
    });
    is_waiting(&server, before).await;
    server.terminate();
    let ended: JsonAnswer = within("the end of the wait", waiting).await.unwrap();
    assert_eq!((ended.status, ended.body), (200, json!({})));
    let refused = json.call(PULL, &json!({"topics": ["mail"]})).await;
    assert_eq!((refused.status, reason(&refused)), (503, "DRAINING"));
    // Through a balancer the next connection may lead to another server.
    assert_eq!(refused.headers["connection"], "close");
    let mut json = JsonClient::connect(server.http).await;
    let receipt = &delivery(&pulled)["receipt"];
    assert_eq!(json.ok(ACK, &json!({"items": [{"receipt": receipt}]})).await, json!({}));
    assert_eq!(client.state("mail", "a").await, JobState::Succeeded);
    client.ack(&slow.receipt).await;
    assert!(server.exit().await.success());
}

#[tokio::test]
async fn calls_can_be_switched_off() {
    let server = Setup::new().config("http_json = false").start().await;
    let answer = JsonClient::connect(server.http).await.call(INFO, &json!({})).await;
    assert_eq!((answer.status, &answer.body["code"]), (404, &json!(12)));
    assert_eq!(http_get(server.http, "/readyz").await.0, 200);
}

//! Rules around the matrix: payloads, follow-ups, globs, pages, live files, the other doors, and starts.

use std::process::Command;
use std::time::Duration;

use prost::Message as _;
use ringq::pb;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::harness::{Server, Setup, eventually, http_get, job, proto, within};

use super::identities::{Caller, IdentityDir, table, token};
use super::matrix::Scaled;

const ADMIN: &str = "producer = ['*']\nworker = ['*']\noperator = ['*']\npayloads = ['*']";

/// Starts a server with these identities and an administrator of it.
async fn server(tables: &str) -> (IdentityDir, Server, Caller) {
    let dir = IdentityDir::new(&(tables.to_owned() + &table("admin", ADMIN)));
    let server = dir.setup().start().await;
    let admin = Caller::connect(&server, "admin").await;
    (dir, server, admin)
}

fn with_id(topic: &str, id: &str) -> pb::JobSpec {
    let payload = pb::Payload {
        kind: Some(pb::payload::Kind::Text("secret body".to_owned())),
        ..Default::default()
    };
    pb::JobSpec { id: id.to_owned(), payload: Some(payload), ..job(topic) }
}

fn pull(topic: &str) -> pb::PullRequest {
    let wait = Some(proto(Duration::from_secs(10)));
    pb::PullRequest { topics: vec![topic.to_owned()], max_jobs: 10, wait, ..Default::default() }
}

fn field(status: &Status) -> String {
    let info = status.get_details_error_info().unwrap();
    info.metadata.get("field").cloned().unwrap_or_default()
}

async fn get(caller: &Caller, view: pb::JobView) -> Result<pb::Job, Status> {
    let (topic, id, view) = ("mail".to_owned(), "a".to_owned(), view.into());
    let answer: pb::GetResponse =
        caller.call("QueueService/Get", &pb::GetRequest { topic, id, view }).await?;
    Ok(answer.job.unwrap())
}

#[tokio::test]
async fn payloads_are_shown_to_those_with_the_right_only() {
    let tables = table("blind", "operator = ['*']")
        + &table("reader", "viewer = ['*']\npayloads = ['mail']");
    let (_dir, _server, admin) = server(&tables).await;
    admin.enqueue(with_id("mail", "a")).await;
    admin.enqueue(with_id("other", "b")).await;
    let (blind, reader) = (admin.as_identity("blind"), admin.as_identity("reader"));
    let has_payload = |job: pb::Job| job.spec.unwrap().payload.is_some();
    for view in [pb::JobView::Unspecified, pb::JobView::Full] {
        assert!(has_payload(get(&reader, view).await.unwrap()), "{view:?}");
    }
    assert!(!has_payload(get(&blind, pb::JobView::Unspecified).await.unwrap()));
    let refused = get(&blind, pb::JobView::Full).await.unwrap_err();
    assert_eq!((refused.code(), &*field(&refused)), (Code::PermissionDenied, "view"));
    let list = async |caller: &Caller, topic: &str, view: pb::JobView| {
        let request = pb::ListJobsRequest {
            topic: topic.to_owned(),
            state: pb::JobState::Ready.into(),
            view: view.into(),
            ..Default::default()
        };
        let answer = caller.call::<pb::ListJobsResponse>("AdminService/ListJobs", &request).await;
        answer.map(|answer| answer.jobs.into_iter().map(has_payload).collect::<Vec<_>>())
    };
    assert_eq!(list(&reader, "mail", pb::JobView::Full).await.unwrap(), [true]);
    assert_eq!(list(&blind, "mail", pb::JobView::Basic).await.unwrap(), [false]);
    for (caller, topic) in [(&blind, "mail"), (&reader, "other")] {
        let refused = list(caller, topic, pb::JobView::Full).await.unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(!format!("{refused:?}").contains("secret"));
    }
}

/// A worker that also has topics out of view: as in ListWorkers, its numbers are hidden.
#[tokio::test]
async fn an_explanation_shows_no_numbers_of_topics_out_of_view() {
    let tables = table("narrow", "viewer = ['mail']\npayloads = ['*']");
    let (_dir, server, admin) = server(&tables).await;
    admin.enqueue(with_id("pay", "held")).await;
    let mut take = tonic::Request::new(pb::StreamRequest {
        topics: vec!["mail".to_owned(), "pay".to_owned()],
        max_in_flight: 1,
        ..Default::default()
    });
    let bearer = format!("Bearer {}", token("admin"));
    take.metadata_mut().insert("authorization", bearer.parse().unwrap());
    let mut stream = server.connect().await.queue.stream(take).await.unwrap().into_inner();
    while stream.message().await.unwrap().unwrap().deliveries.is_empty() {}
    admin.enqueue(with_id("mail", "a")).await;
    let request = pb::ExplainJobRequest { topic: "mail".to_owned(), id: "a".to_owned() };
    for (name, is_shown) in [("admin", true), ("narrow", false)] {
        let caller = admin.as_identity(name);
        let answer: pb::ExplainJobResponse =
            caller.call("AdminService/ExplainJob", &request).await.unwrap();
        assert!(answer.job.unwrap().spec.unwrap().payload.is_none(), "the view is BASIC");
        assert_eq!(answer.reasons[0].code, "NO_CREDIT", "{:?}", answer.reasons);
        let message = &answer.reasons[0].message;
        assert_eq!(message.contains("1 of them of other topics"), is_shown, "{name}: {message}");
        assert_eq!(message.contains("in flight"), is_shown, "{name}: {message}");
    }
}

#[tokio::test]
async fn follow_ups_need_the_right_to_enqueue_them() {
    let tables = table("worker", "worker = ['a']\nproducer = ['b']");
    let (_dir, _server, admin) = server(&tables).await;
    admin.enqueue(job("a")).await;
    let worker = admin.as_identity("worker");
    let pulled: pb::PullResponse = worker.call("QueueService/Pull", &pull("a")).await.unwrap();
    let ack = |topic: &str| {
        let receipt = pulled.deliveries[0].receipt.clone();
        let item = pb::AckItem { receipt, enqueue: vec![job(topic)], ..Default::default() };
        pb::AckRequest { items: vec![item] }
    };
    let refused = worker.call::<pb::AckResponse>("QueueService/Ack", &ack("c")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let done: pb::AckResponse = worker.call("QueueService/Ack", &ack("b")).await.unwrap();
    assert!(done.failures.is_empty(), "the refused Ack has settled nothing: {done:?}");
}

/// A redrive to another topic writes jobs there, and shows their payloads to its workers.
#[tokio::test]
async fn a_redrive_to_another_topic_needs_its_producer_and_the_payloads() {
    let operator = "operator = ['*']\nworker = ['debug']";
    let tables = table("plain", operator)
        + &table("writer", &format!("{operator}\nproducer = ['debug']"))
        + &table("reader", &format!("{operator}\npayloads = ['a']"))
        + &table("both", &format!("{operator}\nproducer = ['debug']\npayloads = ['a']"));
    let (_dir, _server, admin) = server(&tables).await;
    admin.enqueue(job("a")).await;
    let pulled: pb::PullResponse = admin.call("QueueService/Pull", &pull("a")).await.unwrap();
    let item = pb::NackItem {
        receipt: pulled.deliveries[0].receipt.clone(),
        action: pb::NackAction::DeadLetter.into(),
        ..Default::default()
    };
    let nack = pb::NackRequest { items: vec![item] };
    let _: pb::NackResponse = admin.call("QueueService/Nack", &nack).await.unwrap();
    let redrive = |target: &str| pb::RedriveJobsRequest {
        topic: "a".to_owned(),
        target_topic: target.to_owned(),
        all: true,
        ..Default::default()
    };
    for (name, may) in [("plain", false), ("writer", false), ("reader", false), ("both", true)] {
        let done = admin
            .as_identity(name)
            .call::<pb::RedriveJobsResponse>("AdminService/RedriveJobs", &redrive("debug"))
            .await;
        match done {
            Ok(done) => assert!(may && done.redriven_count == 1, "{name}: {done:?}"),
            Err(status) => assert!(!may && status.code() == Code::PermissionDenied, "{status}"),
        }
    }
}

/// A job arrives in its crash topic as by an Enqueue, whether the job names it or the settings of its topic do.
#[tokio::test]
async fn a_crash_topic_needs_its_producer_and_the_settings_of_a_topic_the_payloads() {
    let tables = table("plain", "producer = ['a']\nworker = ['a']\noperator = ['a']")
        + &table("writer", "producer = ['a', 'debug']\nworker = ['a']\noperator = ['a']")
        + &table("reader", "producer = ['a']\noperator = ['a']\npayloads = ['a']")
        + &table("both", "producer = ['debug']\noperator = ['a']\npayloads = ['a']");
    let (_dir, _server, admin) = server(&tables).await;
    let retry = || pb::RetryPolicy { crash_topic: "debug".to_owned(), ..Default::default() };
    let spec = || pb::JobSpec { retry: Some(retry()), ..job("a") };
    let denied = |status: &Status, at: &str| {
        assert_eq!((status.code(), &*field(status)), (Code::PermissionDenied, at), "{status}");
    };
    for (name, may) in [("plain", false), ("writer", true)] {
        let caller = admin.as_identity(name);
        let request = pb::EnqueueRequest { job: Some(spec()), ..Default::default() };
        let one = caller.call::<pb::EnqueueResponse>("QueueService/Enqueue", &request).await;
        let request =
            pb::BatchEnqueueRequest { jobs: vec![spec(), job("a")], ..Default::default() };
        let batch: pb::BatchEnqueueResponse =
            caller.call("QueueService/BatchEnqueue", &request).await.unwrap();
        assert_eq!(batch.failed_count, i32::from(!may), "{name}");
        let pulled: pb::PullResponse = caller.call("QueueService/Pull", &pull("a")).await.unwrap();
        let receipt = pulled.deliveries[0].receipt.clone();
        let item = pb::AckItem { receipt, enqueue: vec![spec()], ..Default::default() };
        let request = pb::AckRequest { items: vec![item] };
        let ack = caller.call::<pb::AckResponse>("QueueService/Ack", &request).await;
        if may {
            assert_eq!((one.is_ok(), ack.unwrap().failures), (true, vec![]), "{name}");
        } else {
            denied(&one.unwrap_err(), "job.retry.crash_topic");
            denied(&ack.unwrap_err(), "items.enqueue.retry.crash_topic");
        }
    }
    for (name, may) in [("plain", false), ("writer", false), ("reader", false), ("both", true)] {
        let caller = admin.as_identity(name);
        let topic = |priority| pb::Topic {
            name: "a".to_owned(),
            retry: Some(retry()),
            priority,
            ..Default::default()
        };
        let update = async |paths: &[&str]| {
            let paths = paths.iter().map(|path| (*path).to_owned()).collect();
            let request = pb::UpdateTopicRequest {
                topic: Some(topic(Some(3))),
                update_mask: Some(prost_types::FieldMask { paths }),
                allow_missing: false,
            };
            caller.call::<pb::UpdateTopicResponse>("TopicService/UpdateTopic", &request).await
        };
        update(&["priority"]).await.unwrap();
        match update(&[]).await {
            Ok(_) => assert!(may, "{name}"),
            Err(status) => {
                assert!(!may, "{name}");
                denied(&status, "topic.retry.crash_topic");
            }
        }
    }
}

/// In one batch, what is not allowed fails alone.
#[tokio::test]
async fn a_batch_fails_by_its_items() {
    let (_dir, _server, admin) = server(&table("shop", "producer = ['shop.*']")).await;
    let jobs = ["shop.a", "bank.a", "shop.b"].map(job).into();
    let batch = pb::BatchEnqueueRequest { jobs, ..Default::default() };
    let done: pb::BatchEnqueueResponse =
        admin.as_identity("shop").call("QueueService/BatchEnqueue", &batch).await.unwrap();
    let codes: Vec<_> =
        done.results.iter().map(|result| result.error.as_ref().map(|error| error.code)).collect();
    assert_eq!(codes, [None, Some(Code::PermissionDenied.into()), None]);
}

#[tokio::test]
async fn a_glob_means_the_topics_that_are_allowed() {
    let tables = table("shop", "worker = ['*']\nnamespaces = ['shop.']");
    let (_dir, _server, admin) = server(&tables).await;
    for topic in ["bank.a", "shop.a", "shop.b"] {
        admin.enqueue(job(topic)).await;
    }
    let shop = admin.as_identity("shop");
    let mut topics = Vec::new();
    while topics.len() < 2 {
        let pulled: pb::PullResponse = shop.call("QueueService/Pull", &pull("*")).await.unwrap();
        topics.extend(pulled.deliveries.into_iter().map(|delivery| delivery.topic));
    }
    topics.sort_unstable();
    assert_eq!(topics, ["shop.a", "shop.b"]);
    let none = pb::PullRequest { wait: Some(proto(Duration::ZERO)), ..pull("*") };
    let pulled: pb::PullResponse = shop.call("QueueService/Pull", &none).await.unwrap();
    assert!(pulled.deliveries.is_empty(), "{pulled:?}");
    let denied = shop.call::<pb::PullResponse>("QueueService/Pull", &pull("bank.*")).await;
    assert_eq!(field(&denied.unwrap_err()), "topics[0]");
}

/// Pages of topics are full although others lie between those that are shown.
#[tokio::test]
async fn pages_pass_over_what_is_hidden() {
    let tables = table("odd", "viewer = ['t1', 't3', 't5', 't7', 't9']");
    let (_dir, _server, admin) = server(&tables).await;
    for number in 0..10 {
        admin.enqueue(job(&format!("t{number}"))).await;
    }
    let odd = admin.as_identity("odd");
    let (mut pages, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = pb::ListTopicsRequest { page_size: 2, page_token, ..Default::default() };
        let page: pb::ListTopicsResponse =
            odd.call("TopicService/ListTopics", &request).await.unwrap();
        pages.push(page.topics.into_iter().map(|row| row.topic.unwrap().name).collect::<Vec<_>>());
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(pages, [vec!["t1", "t3"], vec!["t5", "t7"], vec!["t9"]]);
}

/// The cost of a list depends on what it shows, not on what it hides: 0, 1, 2 or very many topics of others.
#[tokio::test]
async fn lists_read_only_what_they_show() {
    let many: String = (0..100).map(|n| format!("'y{n:02}.*', ")).collect();
    let tables = table("viewer", "viewer = ['m.*', 'q', 's.*']\nnamespaces = ['m.', 'o.', 's.']")
        + &table("exact", "viewer = ['m.1', 'm.2', 'none', 'x']")
        + &table("empty", &format!("viewer = [{many}]"));
    let dir = IdentityDir::new(&(tables + &table("admin", ADMIN)));
    let server = dir.setup().config("metrics_open = true").start().await;
    let admin = Caller::connect(&server, "admin").await;
    for number in 0..250 {
        for prefix in ["a", "n", "z"] {
            admin.enqueue(job(&format!("{prefix}.{number}"))).await;
        }
    }
    for topic in ["m.1", "m.2", "m.3", "s.1"] {
        admin.enqueue(job(topic)).await;
    }
    let reads = async || {
        let metrics = http_get(server.http, "/metrics").await.1;
        let of = |op: &str| {
            let count = format!("ringq_store_op_seconds_count{{op=\"{op}\",shard=\"s0\"}} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&count));
            line.map_or(0, |count| count.parse::<u64>().unwrap())
        };
        // A scrape reads some for the metrics of topics.
        of("topics")
    };
    for (name, page_size, shown, pages, most) in [
        ("viewer", 0, 4, 1, 5),
        ("viewer", 1, 4, 4, 11),
        ("viewer", 2, 4, 2, 7),
        ("exact", 1, 2, 2, 3),
        ("exact", 0, 2, 1, 3),
        ("empty", 0, 0, 4, 103),
    ] {
        let caller = admin.as_identity(name);
        let (mut topics, mut count, mut page_token) = (Vec::new(), 0, String::new());
        let before = reads().await;
        loop {
            let request = pb::ListTopicsRequest { page_size, page_token, ..Default::default() };
            let page: pb::ListTopicsResponse =
                caller.call("TopicService/ListTopics", &request).await.unwrap();
            topics.extend(page.topics.into_iter().map(|row| row.topic.unwrap().name));
            (count, page_token) = (count + 1, page.next_page_token);
            if page_token.is_empty() {
                break;
            }
        }
        let cost = reads().await - before;
        assert_eq!((topics.len(), count), (shown, pages), "{name} {page_size}: {topics:?}");
        assert!(topics.is_sorted(), "{topics:?}");
        assert!(cost <= most, "{name} {page_size}: {cost} reads");
    }
}

/// A call that waits for jobs ends when its caller loses the right to them, or is given other ones.
#[tokio::test]
async fn calls_that_wait_end_with_the_rights_of_their_caller() {
    for (later, code) in [("worker = ['b']", Code::PermissionDenied), ("", Code::Unauthenticated)] {
        let rights = "worker = ['a']\nviewer = ['a']";
        let dir = IdentityDir::new(&(table("w", rights) + &table("admin", ADMIN)));
        let server = dir.setup().config("metrics_open = true").start().await;
        let admin = Caller::connect(&server, "admin").await;
        let w = admin.as_identity("w");
        let wait = Some(proto(Duration::from_secs(60)));
        let pull = pb::PullRequest { wait, ..pull("a") };
        let mut watch = w
            .open(
                "externalscaler.ExternalScaler/StreamIsActive",
                Scaled::of("a").encode_to_vec().into(),
            )
            .await
            .unwrap();
        assert!(watch.message().await.unwrap().is_some(), "it begins with a message");
        let waiting = {
            let (w, pull) = (w.clone(), pull.clone());
            tokio::spawn(
                async move { w.call::<pb::PullResponse>("QueueService/Pull", &pull).await },
            )
        };
        let is_waiting = async || {
            let metrics = http_get(server.http, "/metrics").await.1;
            metrics.contains("ringq_identity_calls_total{identity=\"w\"} 2\n").then_some(())
        };
        eventually("both wait", is_waiting).await;
        let table_of_w = if later.is_empty() { String::new() } else { table("w", later) };
        dir.write("identities.toml", &(table_of_w + &table("admin", ADMIN)));
        let pulled = within("the end of the Pull", waiting).await.unwrap().unwrap();
        assert!(pulled.deliveries.is_empty());
        let end = async { while watch.message().await.unwrap().is_some() {} };
        within("the end of StreamIsActive", end).await;
        let refused = w.call::<pb::PullResponse>("QueueService/Pull", &pull).await.unwrap_err();
        assert_eq!(refused.code(), code);
        admin.enqueue(job("a")).await;
        let got: pb::PullResponse = admin.call("QueueService/Pull", &pull).await.unwrap();
        assert_eq!(got.deliveries.len(), 1, "the ended Pull has not taken the job");
    }
}

/// A change of the files holds within seconds: for calls, and for streams that are open. A broken file changes nothing.
#[tokio::test]
async fn files_are_read_again_while_the_server_runs() {
    let worker = |lines: &str| table("w", lines) + &table("admin", ADMIN);
    let (dir, server, admin) = server(&table("w", "worker = ['a']")).await;
    let mut take = tonic::Request::new(pb::StreamRequest {
        topics: vec!["a".to_owned()],
        ..Default::default()
    });
    take.metadata_mut().insert("authorization", format!("Bearer {}", token("w")).parse().unwrap());
    let mut stream = server.connect().await.queue.stream(take).await.unwrap().into_inner();
    dir.write("identities.toml", &worker("worker = 'broken'"));
    eventually("it warns", async || {
        server.log().contains("identities not read again").then_some(())
    })
    .await;
    assert!(server.log().contains("worker: must be a list of texts"), "{}", server.log());
    let info = pb::GetServerInfoRequest {};
    let w = admin.as_identity("w");
    w.call::<pb::GetServerInfoResponse>("AdminService/GetServerInfo", &info).await.unwrap();
    dir.write("identities.toml", &worker("worker = ['b']"));
    let ended = async {
        while let Some(message) = stream.message().await.unwrap() {
            if message.draining {
                return;
            }
        }
        panic!("the stream ended without a word");
    };
    within("the end of the stream", ended).await;
    let refused = w.call::<pb::PullResponse>("QueueService/Pull", &pull("a")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    dir.write("identities.toml", &table("admin", ADMIN));
    eventually("its token counts no more", async || {
        let answer = w.call::<pb::GetServerInfoResponse>("AdminService/GetServerInfo", &info).await;
        answer.is_err_and(|status| status.code() == Code::Unauthenticated).then_some(())
    })
    .await;
    dir.write("more.toml", &table("w", "worker = ['a']"));
    eventually("it is back", async || {
        let answer = w.call::<pb::GetServerInfoResponse>("AdminService/GetServerInfo", &info).await;
        answer.is_ok().then_some(())
    })
    .await;
}

#[tokio::test]
async fn calls_without_an_identity_are_refused_and_health_is_open() {
    let (_dir, server, _admin) = server("").await;
    let info = pb::GetServerInfoRequest {}.encode_to_vec();
    let path = "ringq.v1.AdminService/GetServerInfo";
    for (header, wanted) in [
        (None, "no credentials"),
        (Some("Bearer wrong"), "belongs to no identity"),
        (Some("Basic dTpw"), "is not of the form"),
        (Some("Bearer"), "is not of the form"),
    ] {
        let caller = Caller::with(&server, header).await;
        let refused = caller.raw(path, info.clone().into()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert!(refused.message().contains(wanted), "{refused:?}");
        let reason = refused.get_details_error_info().unwrap().reason;
        assert_eq!(reason, "UNAUTHENTICATED");
        caller.raw("grpc.health.v1.Health/Check", Vec::new().into()).await.unwrap();
        let reflection = "grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let refused = caller.raw(reflection, vec![0x3a, 0].into()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
    assert!(!server.log().contains("wrong"), "{}", server.log());
}

fn curl(server: &Server, args: &[&str], path: &str) -> String {
    let url = format!("http://{}{path}", server.http);
    let curl = Command::new("curl").args(["-sS", "-i"]).args(args).arg(url).output().unwrap();
    String::from_utf8(curl.stdout).unwrap().to_lowercase()
}

#[tokio::test]
async fn the_http_port_has_the_same_identities() {
    let tables = table("part", "viewer = ['a.*']") + &table("whole", "viewer = ['*']");
    let dir = IdentityDir::new(&tables);
    let server = dir.setup().start().await;
    let bearer = |name: &str| format!("authorization: Bearer {}", token(name));
    for path in ["/healthz", "/readyz"] {
        assert!(curl(&server, &[], path).starts_with("http/1.1 200"), "{path}");
    }
    let refused = curl(&server, &[], "/metrics");
    assert!(refused.starts_with("http/1.1 401") && refused.contains("www-authenticate: bearer"));
    assert!(curl(&server, &["-H", &bearer("part")], "/metrics").starts_with("http/1.1 403"));
    let metrics = curl(&server, &["-H", &bearer("whole")], "/metrics");
    assert!(metrics.contains("ringq_build_info"), "{metrics}");
    let call = |header: &str| {
        let json = "content-type: application/json";
        let path = "/v1/ringq.v1.AdminService/GetServerInfo";
        curl(&server, &["-H", json, "-H", header, "-d", "{}"], path)
    };
    assert!(call(&bearer("part")).starts_with("http/1.1 200"));
    let refused = call("x: y");
    assert!(
        refused.starts_with("http/1.1 401") && refused.contains("unauthenticated"),
        "{refused}"
    );
    drop(server);
    let server = dir.setup().config("metrics_open = true").start().await;
    assert!(curl(&server, &[], "/metrics").starts_with("http/1.1 200"));
}

#[tokio::test]
async fn a_server_without_identities_is_reached_from_its_machine_only() {
    for key in ["listen", "http_listen"] {
        let (listen, other) = match key {
            "listen" => ("0.0.0.0:0", "127.0.0.1:0"),
            _ => ("127.0.0.1:0", "0.0.0.0:0"),
        };
        let failure = Setup::new().listen(listen).http_listen(other).fail().await;
        assert_eq!(failure.code, Some(2), "{}", failure.stderr);
        let wanted = format!("{key}: 0.0.0.0:0 can be reached from other machines");
        for text in [&*wanted, "set identities", "--insecure"] {
            assert!(failure.stderr.contains(text), "{text}: {}", failure.stderr);
        }
    }
    Setup::new().listen("0.0.0.0:0").config("insecure = true").start().await;
    let dir = IdentityDir::new(&table("a", ""));
    let server = dir.setup().listen("0.0.0.0:0").start().await;
    eventually("it warns", async || server.log().contains("unencrypted").then_some(())).await;
}

#[tokio::test]
async fn identities_that_cannot_be_used_stop_the_start() {
    for (text, wanted) in [
        ("[[identity]]\nname = 'a'\nrole = 'x'", "identity[0] (a).role: there is no such key"),
        ("[[identity]\n", "is not TOML: line 1"),
        ("", "there is no identity in it"),
        ("listen = '127.0.0.1:1'", "listen: there is no such table"),
    ] {
        let dir = IdentityDir::new(text);
        let failure = dir.setup().fail().await;
        assert!(failure.stderr.contains(wanted), "{wanted}: {}", failure.stderr);
    }
    let failure = Setup::new().config("identities = '/nowhere'").fail().await;
    assert!(failure.stderr.contains("cannot read /nowhere"), "{}", failure.stderr);
}

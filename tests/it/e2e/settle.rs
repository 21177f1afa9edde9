use ringq::pb::payload::Kind;
use ringq::pb::{
    AckItem, AttemptOutcome, ConflictPolicy, DeleteRequest, EnqueueOutcome, ExtendItem, JobState,
    NackAction, NackItem, Payload, RedriveJobsRequest, RetryPolicy, SettleError, SettleFailure,
};
use tokio::time::Instant;
use tonic::Code;

use crate::harness::{
    Client, JobExt as _, Redis, Server, Setup, SinceEpoch as _, assert_refused, job, millis, nack,
    nack_retry, proto, take, wall_now,
};

fn done(receipt: &str) -> AckItem {
    AckItem { receipt: receipt.to_owned(), ..Default::default() }
}

fn text(text: &str) -> Option<Payload> {
    Some(Payload { kind: Some(Kind::Text(text.to_owned())), ..Default::default() })
}

fn errors(failures: &[SettleFailure]) -> Vec<(i32, SettleError)> {
    failures.iter().map(|failure| (failure.index, failure.error())).collect()
}

#[tokio::test]
async fn an_ack_completes_the_job_and_keeps_its_result_for_its_retention() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_retention(millis(1_500))).await;
    let receipt = client.pull_one("mail").await.receipt;
    assert_eq!(client.state("mail", "a").await, JobState::Running);
    let item = AckItem { receipt, result: text("42"), enqueue: vec![] };
    assert_eq!(client.ack_items(vec![item]).await, []);
    let stored = client.get("mail", "a").await;
    assert_eq!(stored.state(), JobState::Succeeded);
    assert_eq!(stored.result, text("42"));
    assert_eq!((stored.deliveries, stored.failures), (1, 0));
    assert_eq!(stored.attempts[0].outcome(), AttemptOutcome::Succeeded);
    assert!(stored.finish_time.is_some() && stored.lease_expire_time.is_none());
    let stats = client.stats("mail").await;
    assert_eq!((stats.running, stats.succeeded_total), (0, 1));
    crate::harness::eventually("its retention is over", async || {
        client.find("mail", "a").await.is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_repeated_ack_is_a_success_while_the_record_lives() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("named")).await;
    client.enqueue(job("mail")).await;
    let named = client.pull_one("mail").await;
    let unnamed = client.pull_one("mail").await;
    assert_eq!(named.id, "named");
    for _ in 0..3 {
        client.ack(&named.receipt).await;
    }
    // A job with a server-made id leaves nothing: a client that repeats reads NOT_FOUND as done.
    client.ack(&unnamed.receipt).await;
    let failures = client.ack_items(vec![done(&unnamed.receipt)]).await;
    assert_eq!(errors(&failures), [(0, SettleError::NotFound)]);
    assert_eq!(client.stats("mail").await.succeeded_total, 2, "each was counted once");
}

#[tokio::test]
async fn a_repeat_is_a_success_though_the_job_runs_again() {
    let server = Server::start().await;
    let client = server.connect().await;
    let pull = async || client.pull_one("mail").await;
    client.enqueue(job("mail").with_id("a")).await;
    let failed = pull().await;
    let delay = Some(proto(millis(0)));
    let retry = NackItem { delay, ..nack(&failed.receipt, NackAction::Retry) };
    client.nack(retry.clone()).await;
    let acked = pull().await;
    client.nack(retry.clone()).await;
    client.enqueue_by(ConflictPolicy::Replace, job("mail").with_id("a")).await.unwrap();
    client.ack(&acked.receipt).await;
    // The next generation has taken the place.
    let running = pull().await;
    assert_eq!((running.id.as_str(), running.attempt), ("a", 1));
    client.ack(&acked.receipt).await;
    client.nack(retry).await;
    let failures = client.ack_items(vec![done(&failed.receipt)]).await;
    assert_eq!(errors(&failures), [(0, SettleError::Stale)], "it was not acked");
    assert_eq!(client.get("mail", "a").await.deliveries, 1, "nothing was counted again");
    client.ack(&running.receipt).await;
    assert_eq!(client.stats("mail").await.succeeded_total, 2);
}

/// Receipts of each bad kind, and one that is valid.
struct Bad {
    malformed: String,
    gone: String,
    stale: String,
    unreachable: String,
    good: String,
}

async fn bad_receipts(client: &Client, topic: &str) -> Bad {
    let pull = async || client.pull_one(topic).await.receipt;
    client.enqueue(job(topic).with_retention(millis(0))).await;
    let gone = pull().await;
    client.ack(&gone).await;
    client.enqueue(job(topic).with_id("stale")).await;
    let stale = pull().await;
    client.nack(nack(&stale, NackAction::Release)).await;
    let second = pull().await;
    assert_ne!(second, stale);
    client.enqueue(job(topic).with_id("good").with_retention(millis(60_000))).await;
    let good = pull().await;
    // The same receipt from an unknown shard: the name follows the version and its length.
    use base64::Engine as _;
    let base64 = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let mut bytes = base64.decode(&good).unwrap();
    assert_eq!(&bytes[1..4], b"\x02s0");
    bytes[3] = b'9';
    let unreachable = base64.encode(bytes);
    Bad { malformed: "no receipt at all".into(), gone, stale, unreachable, good }
}

impl Bad {
    fn all(&self) -> Vec<String> {
        [&self.malformed, &self.gone, &self.stale, &self.good, &self.unreachable]
            .map(String::clone)
            .to_vec()
    }

    fn check(&self, failures: &[SettleFailure]) {
        assert_eq!(
            errors(failures),
            [
                (0, SettleError::Malformed),
                (1, SettleError::NotFound),
                (2, SettleError::Stale),
                (4, SettleError::Unavailable),
            ]
        );
        for failure in failures {
            let index = usize::try_from(failure.index).unwrap();
            assert_eq!(failure.receipt, self.all()[index], "the receipt, as it was sent");
            assert!(!failure.message.is_empty());
        }
    }
}

#[tokio::test]
async fn a_bad_receipt_fails_its_own_item_and_no_other() {
    let server = Server::start().await;
    let client = server.connect().await;

    let bad = bad_receipts(&client, "extend").await;
    let extend = |receipt: &String| ExtendItem { receipt: receipt.clone(), ..Default::default() };
    bad.check(&client.extend_items(bad.all().iter().map(extend).collect()).await);
    assert_eq!(client.state("extend", "good").await, JobState::Running);

    let bad = bad_receipts(&client, "nack").await;
    let refuse = |receipt: &String| nack(receipt, NackAction::DeadLetter);
    bad.check(&client.nack_items(bad.all().iter().map(refuse).collect()).await);
    assert_eq!(client.state("nack", "good").await, JobState::Dead);
    assert_eq!(client.state("nack", "stale").await, JobState::Running);

    let bad = bad_receipts(&client, "ack").await;
    bad.check(&client.ack_items(bad.all().iter().map(|receipt| done(receipt)).collect()).await);
    assert_eq!(client.state("ack", "good").await, JobState::Succeeded);
    assert_eq!(client.state("ack", "stale").await, JobState::Running);
}

#[tokio::test]
async fn what_is_no_receipt_is_malformed_and_no_rpc_error() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail")).await;
    let good = client.pull_one("mail").await.receipt;
    let cut = good[..12].to_owned();
    let wrong: Vec<String> = vec![
        "x".into(),
        "AAAA".into(),
        "\u{1F980}".into(),
        format!("{good}="),
        format!(" {good}"),
        cut,
        "A".repeat(513),
    ];
    let items: Vec<_> = wrong.iter().map(|receipt| done(receipt)).collect();
    for (failure, receipt) in client.ack_items(items).await.iter().zip(&wrong) {
        assert_eq!(failure.error(), SettleError::Malformed, "{receipt}");
    }
    let items = vec![done(&good)];
    assert_eq!(client.ack_items(items).await, []);
}

#[tokio::test]
async fn a_stale_receipt_settles_nothing() {
    let server = Server::start().await;
    let client = server.connect().await;
    let retry = RetryPolicy { delays: vec![proto(millis(1))], ..Default::default() };
    let spec = job("mail").with_id("a").with_lease(millis(1_000)).with_retry(retry);
    client.enqueue(spec.with_retention(millis(60_000))).await;
    let first = client.pull_one("mail").await;
    let second = client.pull_one("mail").await;
    assert_eq!((second.id.as_str(), second.attempt), ("a", 2), "the lease ran out");
    client.extend(&second.receipt, millis(30_000)).await;
    let mut failures = client.ack_items(vec![done(&first.receipt)]).await;
    failures.extend(client.nack_items(vec![nack(&first.receipt, NackAction::DeadLetter)]).await);
    let extend = ExtendItem { receipt: first.receipt, ..Default::default() };
    failures.extend(client.extend_items(vec![extend]).await);
    assert_eq!(errors(&failures), [(0, SettleError::Stale); 3]);
    let stored = client.get("mail", "a").await;
    assert_eq!((stored.state(), stored.failures), (JobState::Running, 1));
    client.ack(&second.receipt).await;
    assert_eq!(client.state("mail", "a").await, JobState::Succeeded);
}

#[tokio::test]
async fn a_nack_waits_by_the_policy_or_by_its_own_delay() {
    let server = Server::start().await;
    let client = server.connect().await;
    let fail = async |item: NackItem| {
        let before = wall_now();
        client.nack(item).await;
        let job = client.get("mail", "a").await;
        let wait = job.due_time.since_epoch().saturating_sub(before);
        (job, wait)
    };
    client.enqueue(job("mail").with_id("a")).await;
    let receipt = client.pull_one("mail").await.receipt;
    let (stored, wait) = fail(nack_retry(&receipt, "no route")).await;
    assert_eq!((stored.state(), stored.failures, stored.deliveries), (JobState::Backoff, 1, 1));
    assert_eq!(stored.last_error, "no route");
    assert_eq!(stored.attempts[0].outcome(), AttemptOutcome::Failed);
    assert_eq!(stored.attempts[0].error, "no route");
    // The first wait of the server's policy: 1 s, of which jitter may take a fifth.
    assert!(wait >= millis(795) && wait < millis(1_500), "{wait:?}");
    assert_eq!(client.stats("mail").await.backoff, 1);

    let receipt = client.pull_one("mail").await.receipt;
    let delay = Some(proto(millis(3_600_000)));
    let (stored, wait) = fail(NackItem { delay, ..nack(&receipt, NackAction::Retry) }).await;
    assert_eq!((stored.state(), stored.failures), (JobState::Backoff, 2));
    assert!(wait >= millis(3_600_000) && wait < millis(3_605_000), "{wait:?}");

    // 0 s puts it at the end of the ready jobs.
    let mail2 = |id: &str| job("mail2").with_id(id);
    client.enqueue(mail2("x")).await;
    let receipt = client.pull_one("mail2").await.receipt;
    client.enqueue(mail2("y")).await;
    client.nack(NackItem { delay: Some(proto(millis(0))), ..nack_retry(&receipt, "") }).await;
    let order: Vec<_> = client.pull_now("mail2", 2).await.into_iter().map(|d| d.id).collect();
    assert_eq!(order, ["y", "x"]);
}

#[tokio::test]
async fn a_released_job_keeps_its_place_and_counts_no_failure() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_max_attempts(1)).await;
    let due = client.get("mail", "a").await.due_time;
    let receipt = client.pull_one("mail").await.receipt;
    client.enqueue(job("mail").with_id("b")).await;
    let release = nack(&receipt, NackAction::Release);
    client.nack(release.clone()).await;
    let stored = client.get("mail", "a").await;
    assert_eq!((stored.state(), stored.failures, stored.deliveries), (JobState::Ready, 0, 1));
    assert_eq!(stored.due_time, due, "it keeps its place");
    assert_eq!(stored.attempts[0].outcome(), AttemptOutcome::Released);
    let [a, b]: [_; 2] = client.pull_now("mail", 2).await.try_into().unwrap();
    assert_eq!((a.id.as_str(), b.id.as_str()), ("a", "b"));
    assert_eq!((a.attempt, a.delivery), (1, 2));
    // With a wait it is SCHEDULED: it has not failed.
    let delay = Some(proto(millis(60_000)));
    client.nack(NackItem { delay, ..nack(&a.receipt, NackAction::Release) }).await;
    assert_eq!(client.state("mail", "a").await, JobState::Scheduled);
}

#[tokio::test]
async fn a_job_climbs_its_ladder_and_becomes_a_dead_letter_that_can_be_redriven() {
    let server = Server::start().await;
    let client = server.connect().await;
    let waits = [300, 700, 300].map(millis);
    let retry = RetryPolicy {
        max_attempts: 4,
        delays: waits.iter().map(|&wait| proto(wait)).collect(),
        ..Default::default()
    };
    client.enqueue(job("mail").with_id("a").with_text("x").with_retry(retry)).await;
    let mut worker = client.stream(take("mail")).await;
    let mut delivery = worker.next().await;
    for (failed, wait) in waits.into_iter().enumerate() {
        assert_eq!(delivery.attempt as usize, failed + 1);
        assert_eq!(delivery.max_attempts, 4);
        let nacked = Instant::now();
        client.nack(nack_retry(&delivery.receipt, &format!("error {failed}"))).await;
        delivery = worker.next().await;
        let waited = nacked.elapsed();
        assert!(waited >= wait, "retry {failed} after {waited:?}, not {wait:?}");
        assert!(waited < wait + millis(800), "retry {failed} after {waited:?}, not {wait:?}");
        assert_eq!(delivery.last_error, format!("error {failed}"));
    }
    client.nack(nack_retry(&delivery.receipt, "the last")).await;
    let dead = client.get("mail", "a").await;
    assert_eq!((dead.state(), dead.failures, dead.deliveries), (JobState::Dead, 4, 4));
    assert_eq!((dead.attempts.len(), dead.last_error.as_str()), (4, "the last"));
    assert!(dead.finish_time.is_some());
    worker.quiet(millis(500)).await;
    let stats = client.stats("mail").await;
    assert_eq!((stats.dead, stats.dead_total, stats.backoff), (1, 1, 0));

    let redrive = RedriveJobsRequest { topic: "mail".into(), all: true, ..Default::default() };
    let answer = client.admin.clone().redrive_jobs(redrive).await.unwrap().into_inner();
    assert_eq!((answer.redriven_count, answer.skipped_count), (1, 0));
    let again = worker.next().await;
    assert_eq!((again.attempt, again.delivery), (1, 1), "fresh counters");
    assert_eq!(
        again.payload,
        text("x").map(|p| Payload { content_type: content_type(&again), ..p })
    );
    client.ack(&again.receipt).await;
    assert_eq!(client.stats("mail").await.dead, 0);
}

fn content_type(delivery: &ringq::pb::Delivery) -> String {
    delivery.payload.as_ref().unwrap().content_type.clone()
}

#[tokio::test]
async fn the_last_attempt_the_last_delivery_and_dead_letter_end_a_job() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("attempts").with_max_attempts(1)).await;
    let receipt = client.pull_one("mail").await.receipt;
    client.nack(nack_retry(&receipt, "")).await;
    assert_eq!(client.state("mail", "attempts").await, JobState::Dead);

    client.enqueue(job("mail").with_id("poison")).await;
    let receipt = client.pull_one("mail").await.receipt;
    let item = NackItem { error: "never".into(), ..nack(&receipt, NackAction::DeadLetter) };
    client.nack(item).await;
    let dead = client.get("mail", "poison").await;
    assert_eq!((dead.state(), dead.last_error.as_str()), (JobState::Dead, "never"));

    let retry = RetryPolicy { max_deliveries: 2, ..Default::default() };
    client.enqueue(job("mail").with_id("deliveries").with_retry(retry)).await;
    for state in [JobState::Ready, JobState::Dead] {
        let receipt = client.pull_one("mail").await.receipt;
        client.nack(nack(&receipt, NackAction::Release)).await;
        assert_eq!(client.state("mail", "deliveries").await, state);
    }
    assert_eq!(client.pull_now("mail", 10).await, []);
    assert_eq!(client.stats("mail").await.dead, 3);
}

#[tokio::test]
async fn max_retry_duration_and_ignored_leases_are_kept() {
    let server = Server::start().await;
    let client = server.connect().await;
    let retry = RetryPolicy {
        max_attempts: -1,
        delays: vec![proto(millis(10))],
        max_retry_duration: Some(proto(millis(600))),
        ..Default::default()
    };
    client.enqueue(job("time").with_id("a").with_retry(retry)).await;
    let begin = Instant::now();
    while client.state("time", "a").await != JobState::Dead {
        assert!(begin.elapsed() < millis(5_000), "it goes on for ever");
        let delivery = client.pull_one("time").await;
        assert_eq!(delivery.max_attempts, -1);
        tokio::time::sleep(millis(50)).await;
        client.nack(nack_retry(&delivery.receipt, "")).await;
    }
    assert!(begin.elapsed() >= millis(600), "dead after {:?}", begin.elapsed());

    let retry =
        RetryPolicy { max_attempts: 1, ignore_expired_leases: Some(true), ..Default::default() };
    let spec = job("lease").with_id("a").with_lease(millis(1_000)).with_retry(retry);
    client.enqueue(spec).await;
    client.pull_one("lease").await;
    let again = client.pull_one("lease").await;
    assert_eq!((again.attempt, again.delivery), (1, 2), "an expired lease is no failure here");
}

#[tokio::test]
async fn an_extend_moves_the_end_of_the_lease_later_or_sooner() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_lease(millis(1_000))).await;
    client.enqueue(job("mail").with_id("b").with_lease(millis(60_000))).await;
    let mut worker = client.stream(take("mail")).await;
    let [a, b]: [_; 2] = worker.next_many(2).await.try_into().unwrap();
    let item = ExtendItem {
        receipt: a.receipt.clone(),
        lease_duration: Some(proto(millis(20_000))),
        progress: "half way".into(),
        checkpoint: None,
    };
    let before = wall_now();
    assert_eq!(client.extend_items(vec![item]).await, []);
    let stored = client.get("mail", "a").await;
    assert_eq!(stored.progress, "half way");
    let left = stored.lease_expire_time.since_epoch() - before;
    assert!(left >= millis(20_000) && left < millis(22_000), "{left:?}");
    // Shortened: b comes back, a does not, though its first lease was as short.
    client.extend(&b.receipt, millis(1_000)).await;
    let revoked = worker.revocation().await;
    assert_eq!(revoked.receipt, b.receipt);
    assert_eq!(client.state("mail", "a").await, JobState::Running);
    // Without a duration: the length of the first lease.
    let item = ExtendItem { receipt: a.receipt.clone(), ..Default::default() };
    let before = wall_now();
    assert_eq!(client.extend_items(vec![item]).await, []);
    let stored = client.get("mail", "a").await;
    let left = stored.lease_expire_time.since_epoch() - before;
    assert!(left >= millis(1_000) && left < millis(2_500), "{left:?}");
    assert_eq!(stored.progress, "half way", "no note leaves the last one");
}

#[tokio::test]
async fn heartbeats_keep_a_long_job_with_its_worker() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a").with_lease(millis(1_000))).await;
    let mut worker = client.stream(take("mail")).await;
    let receipt = worker.next().await.receipt;
    for _ in 0..5 {
        worker.quiet(millis(500)).await;
        client.extend(&receipt, millis(1_000)).await;
    }
    client.ack(&receipt).await;
    let stored = client.get("mail", "a").await;
    assert_eq!((stored.deliveries, stored.failures), (1, 0));
    assert!(worker.messages.iter().all(|m| m.revocations == 0));
}

#[tokio::test]
async fn follow_ups_are_written_with_the_ack_or_not_at_all() {
    follow_ups_are_written_with_the_ack(Server::start().await).await;
}

#[tokio::test]
async fn follow_ups_are_written_with_the_ack_or_not_at_all_on_a_redis() {
    let Some(redis) = Redis::start().await else { return };
    follow_ups_are_written_with_the_ack(Setup::on(&redis.url()).start().await).await;
}

async fn follow_ups_are_written_with_the_ack(server: Server) {
    let client = server.connect().await;
    let pull = async || {
        client.enqueue(job("first").with_retention(millis(60_000))).await;
        client.pull_one("first").await
    };
    let ack = |receipt: &str, enqueue| AckItem { enqueue, ..done(receipt) };

    let first = pull().await;
    let follow_ups = vec![
        job("second").with_text("made"),
        job("second").with_id("named").with_delay(millis(60_000)),
    ];
    assert_eq!(client.ack_items(vec![ack(&first.receipt, follow_ups.clone())]).await, []);
    assert_eq!(client.state("first", &first.id).await, JobState::Succeeded);
    let stats = client.stats("second").await;
    assert_eq!((stats.ready, stats.scheduled), (1, 1));
    // A repeat completes nothing twice.
    assert_eq!(client.ack_items(vec![ack(&first.receipt, follow_ups)]).await, []);
    let stats = client.stats("second").await;
    assert_eq!((stats.ready, stats.scheduled), (1, 1), "a repeat writes no follow-ups again");

    // A bad follow-up fails the call: nothing is applied, not even the good items.
    let (one, two) = (pull().await, pull().await);
    let bad = vec![job("third"), job("no good")];
    let items = vec![done(&one.receipt), ack(&two.receipt, bad)];
    let status = client.try_ack(items).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "INVALID_FIELD", "items[1].enqueue[1].topic");
    for delivery in [&one, &two] {
        assert_eq!(client.state("first", &delivery.id).await, JobState::Running);
    }
    let too_many = vec![job("third"); 17];
    let status = client.try_ack(vec![ack(&one.receipt, too_many)]).await.unwrap_err();
    assert_refused(&status, Code::InvalidArgument, "TOO_LARGE", "items[0].enqueue");

    // A stale ack writes none.
    client.nack(nack(&one.receipt, NackAction::DeadLetter)).await;
    let stale = vec![ack(&one.receipt, vec![job("third"), job("third").with_id("x")])];
    assert_eq!(client.ack_items(stale).await.len(), 1);
    assert_eq!(client.pull_now("third", 10).await, []);
    // A named follow-up that exists already is no obstacle.
    let again = vec![job("second").with_id("named")];
    assert_eq!(client.ack_items(vec![ack(&two.receipt, again)]).await, []);
    assert_eq!(client.state("first", &two.id).await, JobState::Succeeded);
    assert_eq!(client.stats("second").await.scheduled, 1, "KEEP: its due time is not moved");
}

#[tokio::test]
async fn the_ack_of_a_deleted_job_is_refused_and_of_a_new_generation_too() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue(job("mail").with_id("a")).await;
    let first = client.pull_one("mail").await;
    let delete = DeleteRequest { topic: "mail".into(), id: "a".into(), ..Default::default() };
    client.queue.clone().delete(delete).await.unwrap();
    // Its id is free again.
    let answer = client.enqueue_by(ConflictPolicy::Keep, job("mail").with_id("a")).await.unwrap();
    assert_eq!(answer.outcome(), EnqueueOutcome::Created);
    let failures = client.ack_items(vec![done(&first.receipt)]).await;
    assert_eq!(failures.len(), 1);
    assert!(matches!(failures[0].error(), SettleError::Stale | SettleError::NotFound));
    assert_eq!(client.state("mail", "a").await, JobState::Ready);
    let second = client.pull_one("mail").await;
    client.ack(&second.receipt).await;
}

#[tokio::test]
async fn a_thousand_receipts_settle_in_one_call() {
    let server = Server::start().await;
    let client = server.connect().await;
    client.enqueue_all(vec![job("bulk"); 1_000]).await;
    let mut receipts = Vec::new();
    while receipts.len() < 1_000 {
        let pulled = client.pull_now("bulk", 256).await;
        assert!(!pulled.is_empty());
        receipts.extend(pulled.into_iter().map(|delivery| delivery.receipt));
    }
    let extends = receipts
        .iter()
        .map(|receipt| ExtendItem { receipt: receipt.clone(), ..Default::default() });
    assert_eq!(client.extend_items(extends.collect()).await, []);
    let (nacked, acked) = receipts.split_at(500);
    let nacks = nacked.iter().map(|receipt| nack(receipt, NackAction::DeadLetter)).collect();
    assert_eq!(client.nack_items(nacks).await, []);
    client.ack_all(acked).await;
    let stats = client.stats("bulk").await;
    assert_eq!((stats.running, stats.dead, stats.succeeded_total), (0, 500, 500));
}

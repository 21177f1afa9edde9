use ringq::pb::payload::Kind;
use ringq::pb::{
    AckItem, AttemptOutcome, ExtendItem, JobState, NackAction, Payload, RedriveJobsRequest,
    RetryPolicy, SettleError, SettleFailure,
};
use tokio::time::Instant;
use tonic::Code;

use crate::harness::{
    Client, Server, SinceEpoch as _, assert_refused, job, millis, nack, nack_retry, proto, take,
    wall_now,
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
    let after = wall_now();
    let stored = client.get("mail", "a").await;
    assert_eq!(stored.progress, "half way");
    let ends = stored.lease_expire_time.since_epoch() - millis(20_000);
    assert!(before <= ends && ends <= after, "{before:?}, {ends:?}, {after:?}");
    // Shortened: b comes back, a does not, though its first lease was as short.
    client.extend(&b.receipt, millis(1_000)).await;
    let revoked = worker.revocation().await;
    assert_eq!(revoked.receipt, b.receipt);
    assert_eq!(client.state("mail", "a").await, JobState::Running);
}

#[tokio::test]
async fn follow_ups_are_written_with_the_ack_or_not_at_all() {
    follow_ups_are_written_with_the_ack(Server::start().await).await;
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

//! One replica of several on a store: what others do to its leases, whether it hears of it or not.

use std::time::Duration;

use futures::FutureExt as _;

use super::harness::{Server, Worker, options, settle_down};
use super::*;
use crate::domain::lifecycle::Cause;
use crate::domain::{JobId, JobKey, Keep, OnConflict, Spec, TopicName, When, limit};
use crate::scheduler::Ended;
use crate::store::faulty::Asked;
use crate::store::{End, Event, Hint, Lease, LeaseRef, NewJob, Prior, Settle};

/// What another replica does is done to the store, past the server.
impl Server {
    async fn enqueue_elsewhere(&self, topic: &str, id: &str) {
        self.store.inner().enqueue(vec![new_job(topic, id, When::Now)]).await.unwrap();
    }

    async fn ack_elsewhere(&self, delivery: &Delivery) {
        let end = End::Ack { result: None, follow_ups: Vec::new() };
        let settle = Settle { lease: lease(delivery), owner: 0, end, deadline: None };
        self.store.inner().settle(vec![settle]).await.unwrap()[0].unwrap();
    }

    fn tell(&self, event: Event) {
        self.store.hints.send(event);
    }

    /// Lets so many seconds pass one by one, and what they bring about happen.
    async fn pass(&self, seconds: u32) {
        for _ in 0..seconds {
            self.clock.advance(SECOND);
            tokio::time::sleep(Duration::from_millis(120)).await;
        }
    }

    /// Lets so many seconds pass at once.
    async fn jump(&self, seconds: u32) {
        self.clock.advance(seconds * SECOND);
        tokio::time::sleep(Duration::from_millis(250)).await;
    }

    fn in_flight(&self) -> u32 {
        self.dispatcher.workers()[0].in_flight
    }

    async fn until_in_flight(&self, jobs: u32) {
        let waiting = async {
            while self.in_flight() != jobs {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let waited = tokio::time::timeout(5 * SECOND, waiting).await;
        assert!(waited.is_ok(), "{} jobs in flight", self.in_flight());
    }
}

fn new_job(topic: &str, id: &str, due: When) -> NewJob {
    NewJob {
        key: JobKey { topic: TopicName::stored(topic), id: JobId::stored(id) },
        spec: Spec::default(),
        due,
        priority: None,
        expire: None,
        keep: Keep::Tombstone(60 * SECOND),
        on_conflict: OnConflict::Keep,
        request: None,
        durability: None,
        until: None,
        prior: Prior::Anything,
        checkpoint: None,
    }
}

fn lease(delivery: &Delivery) -> LeaseRef {
    LeaseRef { key: delivery.job.key.clone(), token: delivery.job.token }
}

/// A server, a stream of that credit, and as many jobs on it.
async fn started(credit: u32) -> (Server, Worker, Vec<Delivery>) {
    let server = Server::start_among_others();
    for n in 0..=credit {
        server.enqueue_elsewhere("t", &n.to_string()).await;
    }
    let mut stream = server.open(StreamOptions { max_in_flight: credit, ..options(&["t"]) });
    let jobs = stream.jobs(credit as usize).await;
    (server, stream, jobs)
}

#[tokio::test]
async fn credit_that_was_freed_elsewhere_is_heard_of_at_once() {
    let (server, mut stream, jobs) = started(2).await;
    server.ack_elsewhere(&jobs[0]).await;
    stream.nothing().await;
    let (stream_id, tokens) = (jobs[0].receipt.stream, vec![jobs[0].job.token]);
    server.tell(Event::Lease(Hint::Settled { stream: stream_id, tokens: tokens.clone() }));
    stream.jobs(1).await;
    // Told twice it is free once.
    server.tell(Event::Lease(Hint::Settled { stream: stream_id, tokens }));
    settle_down().await;
    assert_eq!(server.in_flight(), 2);
    assert_eq!(server.store.leases_asked(), 0);
}

#[tokio::test]
async fn a_stream_that_waits_for_credit_finds_out_what_it_did_not_hear() {
    let (server, mut stream, jobs) = started(2).await;
    server.ack_elsewhere(&jobs[1]).await;
    server.pass(2).await;
    let batch = stream.batch().await;
    assert_eq!((batch.deliveries.len(), batch.in_flight), (1, 2));
    assert!(batch.revocations.is_empty(), "what was acknowledged has not run out");
}

#[tokio::test]
async fn what_a_full_stream_holds_is_asked_for_in_short_parts() {
    let (server, _stream, _jobs) = started(2 * limit::PART_MAX as u32 + 1).await;
    server.jump(2).await;
    assert_eq!(server.store.leases_asked(), 3);
}

#[tokio::test]
async fn what_was_lost_elsewhere_is_revoked_though_nothing_was_heard() {
    let (server, mut stream, jobs) = started(1).await;
    let found =
        server.store.inner().leases(vec![lease(&jobs[0])]).await.unwrap().remove(0).unwrap();
    let shard = &server.scheduler.shards().all()[0];
    // As another replica does that took this one for dead; its own hint goes to nobody.
    let given_back = Lease { owner: 99, ..found };
    let ended = server.scheduler.end_leases(shard, &[given_back], &Cause::Broken).await;
    assert_eq!(ended, Ok(Ended { over: 1, here: 1, left: Vec::new() }));
    server.pass(2).await;
    let batch = stream.batch().await;
    assert_eq!(batch.revocations, [(jobs[0].receipt.clone(), Revoked::LeaseExpired)]);
}

#[tokio::test]
async fn after_hints_may_have_been_lost_everything_is_looked_up_once() {
    let (server, mut stream, jobs) = started(16).await;
    let asked = server.store.leases_asked();
    for delivery in &jobs[..9] {
        server.ack_elsewhere(delivery).await;
    }
    server.tell(Event::Missed);
    stream.jobs(1).await;
    server.until_in_flight(8).await;
    assert_eq!(server.store.leases_asked() - asked, 1);
}

#[tokio::test]
async fn an_extend_elsewhere_moves_the_look_at_the_deadline() {
    let server = Server::start_among_others();
    server.enqueue_elsewhere("t", "1").await;
    let mut stream = server.open(options(&["t"]));
    let jobs = stream.jobs(1).await;
    let extend = crate::store::Extend {
        lease: lease(&jobs[0]),
        duration: Some(300 * SECOND),
        progress: None,
        checkpoint: None,
        lapsed: None,
        until: None,
    };
    let deadline = server.store.inner().extend(vec![extend]).await.unwrap().remove(0).unwrap();
    let (stream_id, tokens) = (jobs[0].receipt.stream, vec![jobs[0].job.token]);
    server.tell(Event::Lease(Hint::Extended { stream: stream_id, tokens, deadline }));
    settle_down().await;
    server.jump(40).await;
    assert_eq!(server.store.leases_asked(), 0);
    server.jump(262).await;
    assert_eq!(server.store.leases_asked(), 1);
}

#[tokio::test]
async fn a_lost_wake_up_costs_a_second() {
    let server = Server::start_among_others();
    let mut stream = server.open(options(&["t", "g.*"]));
    settle_down().await;
    server.enqueue_elsewhere("t", "a").await;
    stream.nothing().await;
    server.pass(1).await;
    stream.jobs(1).await;
    // A topic that did not exist is found by its glob a little later, and from then on as quickly.
    server.enqueue_elsewhere("g.new", "b").await;
    server.pass(10).await;
    stream.jobs(1).await;
    settle_down().await;
    server.enqueue_elsewhere("g.new", "c").await;
    server.pass(1).await;
    stream.jobs(1).await;
}

#[tokio::test]
async fn no_number_of_topics_holds_up_claims() {
    const JOBS: usize = 16_000;
    let server = Server::start_among_others();
    let topic = |n: usize| format!("user.{n}");
    let later: Vec<_> =
        (0..5_000).map(|n| new_job(&topic(n), "1", When::After(9_999 * SECOND))).collect();
    server.store.inner().enqueue(later).await.unwrap();
    let jobs = (0..JOBS).map(|n| new_job("busy", &n.to_string(), When::Now)).collect();
    server.store.inner().enqueue(jobs).await.unwrap();
    let held = server.store.hold_claims();
    let credit = StreamOptions { max_in_flight: 10_000, max_batch: 1_000, ..options(&["busy"]) };
    let mut busy = server.open(credit);
    server.eventually("busy", |stats| stats.running > 0).await;
    let mut globbing = server.open(options(&["user.*"]));
    drop(held);
    let mut got = 0;
    while got < JOBS {
        let batch = busy.batch().await;
        got += batch.deliveries.len();
        server.ack(&batch.deliveries).await;
    }
    globbing.nothing().await;
    let calls = server.store.asked();
    let last = calls.iter().rposition(|call| *call == Asked::Claim).unwrap();
    let in_a_row = |calls: &[Asked]| {
        let looks = calls.chunk_by(|a, b| a == b).filter(|run| run[0] == Asked::Look);
        looks.map(<[Asked]>::len).max().unwrap()
    };
    assert!(calls.contains(&Asked::Look) && in_a_row(&calls[..last]) == 1, "{calls:?}");
    // The looks go through all that sleep.
    server.enqueue_elsewhere(&topic(4_321), "2").await;
    let found = async {
        while globbing.batch().now_or_never().is_none() {
            server.pass(1).await;
        }
    };
    tokio::time::timeout(20 * SECOND, found).await.unwrap();
}

#[tokio::test]
async fn a_store_of_its_own_is_not_asked_about_anything() {
    let server = Server::start();
    server.enqueue("t", 1).await;
    let mut stream = server.open(StreamOptions { max_in_flight: 1, ..options(&["t"]) });
    let jobs = stream.jobs(1).await;
    server.jump(20).await;
    assert_eq!(server.store.leases_asked(), 0);
    server.extend(&jobs).await;
    server.jump(25).await;
    assert_eq!(server.store.leases_asked(), 0, "its own extends it knows of");
}

//! Claim: the jobs, their time and order, their takers, and the report of the remainder.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::store_calls::{StoreCalls as _, TestJob};
use ringq::domain::{Spec, State, Time, limit};
use ringq::store::{Claim, StreamDemand, TopicDemand, TopicLeases, TopicRemainder};

use super::fixture::Fixture;
use super::values::{
    LEASE, OWNER, TOPIC, after, failed, failed_for, ids_of, job_in, new_job, one, plus, released,
    taker, text, topic,
};

/// Returns the claims of [`TOPIC`] by taker, as ids.
fn shares(claimed: &TopicLeases) -> Vec<Vec<String>> {
    claimed.by_stream.iter().map(|leased| ids_of(leased)).collect()
}

/// Builds a job with a payload of this size and no headers.
fn sized(id: &str, bytes: usize) -> TestJob {
    let spec = Spec { payload: Some(text(&"x".repeat(bytes))), ..Spec::default() };
    TestJob { spec, ..new_job(id) }
}

// === time ===

pub(crate) async fn nothing_is_handed_out_before_its_due_time(q: Fixture) {
    let put = q.put(TestJob { due: after(86_400), ..new_job("a") }).await;
    q.until_just_before(put.due);
    assert!(q.claim_ids().await.is_empty());
    q.until(put.due);
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn a_retried_job_is_not_handed_out_before_its_wait_is_over(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, failed()).await;
    let due = q.job("a").await.due_time;
    assert_eq!(due, plus(q.now(), 1));
    q.until_just_before(due);
    assert!(q.claim_ids().await.is_empty());
    q.until(due);
    assert_eq!(q.claim_ids().await, ["a"]);
}

pub(crate) async fn an_expired_job_is_never_handed_out(q: Fixture) {
    let expire = plus(q.now(), 10);
    for id in ["a", "b"] {
        q.put(TestJob { expire: Some(after(10)), ..new_job(id) }).await;
    }
    q.until_just_before(expire);
    assert_eq!(ids_of(&q.claim(1).await), ["a"]);
    q.until(expire);
    assert!(q.claim_ids().await.is_empty());
    assert_eq!(q.state("a").await, Some(State::Running), "it was running by then");
}

pub(crate) async fn a_job_is_handed_out_once(q: Fixture) {
    let leased = q.running("a").await;
    assert!(q.claim_ids().await.is_empty());
    q.until(leased.deadline);
    q.sleep(1);
    assert!(q.claim_ids().await.is_empty(), "a passed deadline only allows reaping");
}

/// A stream identifies its leases by their tokens. Two random tokens of that size collide once in 30,000 claims;
/// tokens that are made distinct must differ in few bits, too.
pub(crate) async fn no_two_leases_of_a_claim_have_one_token(q: Fixture) {
    let job = |n: usize| job_in(["t", "u", "v"][n % 3], &n.to_string());
    q.store.enqueue((0..limit::CALL_JOBS_MAX).map(job).collect()).await.unwrap();
    let seats =
        || vec![StreamDemand { jobs: 100, ..taker() }, StreamDemand { stream: 2, ..taker() }];
    let asks = ["t", "u", "v"].map(|name| TopicDemand {
        topic: topic(name),
        ageing: None,
        streams: seats(),
    });
    let claim = Claim { nonce: q.nonce(), owner: OWNER, topics: asks.to_vec() };
    let claimed = q.store.claim(claim).await.unwrap().topics;
    let leased = claimed.into_iter().flat_map(|topic| topic.by_stream).flatten();
    let places: BTreeSet<u64> =
        leased.map(|leased| leased.token.0 % limit::CALL_JOBS_MAX as u64).collect();
    assert_eq!(places.len(), limit::CALL_JOBS_MAX);
}

// === order ===

pub(crate) async fn order_is_priority_then_due_time_then_arrival(q: Fixture) {
    let at = |id, seconds, priority| TestJob {
        due: after(seconds),
        priority: Some(priority),
        ..new_job(id)
    };
    let jobs = vec![
        at("f", 3, 0),
        at("g", 3, 0),
        at("e", 2, 0),
        at("d", 9, 1),
        at("b", 5, 9),
        at("c", 5, 9),
        at("a", 4, 9),
    ];
    q.store.enqueue(jobs).await.unwrap();
    q.sleep(10);
    assert_eq!(q.claim_ids().await, ["a", "b", "c", "d", "e", "f", "g"]);
}

pub(crate) async fn fresh_delayed_retried_and_returned_jobs_wait_in_one_order(q: Fixture) {
    q.put_ids(&["returned", "retried", "released"]).await;
    let leased = q.claim(3).await;
    q.sleep(1);
    q.put(TestJob { due: after(1), ..new_job("delayed") }).await;
    q.sleep(1);
    q.end(&leased[1], failed_for(1)).await;
    q.sleep(2);
    q.put(new_job("fresh")).await;
    q.end(&leased[2], released()).await;
    assert!(q.unclaim(&leased[0]).await);
    let expected = ["returned", "released", "delayed", "retried", "fresh"];
    assert_eq!(q.claim_ids().await, expected);
}

pub(crate) async fn a_retry_without_delay_goes_to_the_end(q: Fixture) {
    q.put_ids(&["a", "b"]).await;
    let leased = q.claim_one().await;
    q.clock.advance(Duration::from_micros(1));
    q.end(&leased, failed_for(0)).await;
    assert_eq!(q.claim_ids().await, ["b", "a"]);
}

pub(crate) async fn a_delayed_job_comes_before_what_is_enqueued_when_it_is_due(q: Fixture) {
    let put = q.put(TestJob { due: after(5), ..new_job("delayed") }).await;
    q.until(put.due);
    q.sleep(1);
    q.put(new_job("fresh")).await;
    assert_eq!(q.claim_ids().await, ["delayed", "fresh"]);
}

// === takers ===

pub(crate) async fn jobs_go_round_from_taker_to_taker(q: Fixture) {
    q.put_ids(&["a", "b", "c", "d", "e", "f"]).await;
    let takers = [3, 1, 9].map(|jobs| StreamDemand { jobs, ..taker() }).to_vec();
    let claimed = q.claim_for(TOPIC, takers).await;
    assert_eq!(shares(&claimed), [vec!["a", "d", "f"], vec!["b"], vec!["c", "e"]]);
}

pub(crate) async fn no_other_gets_more_jobs_than_it_can_take(q: Fixture) {
    q.put_ids(&["a", "b", "c", "d"]).await;
    let takers = [1, 0, 2].map(|jobs| StreamDemand { jobs, ..taker() }).to_vec();
    let claimed = q.claim_for(TOPIC, takers).await;
    assert_eq!(shares(&claimed), [vec!["a"], vec![], vec!["b", "c"]]);
    assert_eq!(claimed.remainder, TopicRemainder::Ready);
}

pub(crate) async fn no_other_gets_more_bytes_than_it_can_take(q: Fixture) {
    let jobs = vec![sized("a", 60), sized("b", 40), sized("c", 1)];
    q.store.enqueue(jobs).await.unwrap();
    let claimed = q.claim_for(TOPIC, vec![StreamDemand { bytes: 100, ..taker() }]).await;
    assert_eq!(
        (shares(&claimed), claimed.remainder),
        (vec![vec!["a".into(), "b".into()]], TopicRemainder::Ready)
    );
}

pub(crate) async fn bytes_are_those_of_payload_and_headers(q: Fixture) {
    let headers = vec![("name".to_owned(), "value".to_owned())];
    let spec = Spec { payload: Some(text("1234567")), headers, ..Spec::default() };
    q.put(TestJob { spec, ..new_job("a") }).await;
    let tight = |bytes| vec![StreamDemand { bytes, oversize: false, ..taker() }];
    assert_eq!(shares(&q.claim_for(TOPIC, tight(15)).await), [Vec::<String>::new()]);
    assert_eq!(shares(&q.claim_for(TOPIC, tight(16)).await), [["a"]]);
}

pub(crate) async fn a_job_that_fits_no_worker_waits_and_nothing_overtakes_it(q: Fixture) {
    q.store.enqueue(vec![sized("big", 50), sized("small", 1)]).await.unwrap();
    let claimed =
        q.claim_for(TOPIC, vec![StreamDemand { bytes: 10, oversize: false, ..taker() }]).await;
    assert_eq!((shares(&claimed), claimed.remainder), (vec![vec![]], TopicRemainder::Ready));
}

pub(crate) async fn an_oversized_job_comes_alone_to_who_holds_nothing(q: Fixture) {
    q.store.enqueue(vec![sized("big", 50), sized("small", 1)]).await.unwrap();
    let claimed =
        q.claim_for(TOPIC, vec![StreamDemand { bytes: 10, oversize: true, ..taker() }]).await;
    assert_eq!(
        (shares(&claimed), claimed.remainder),
        (vec![vec!["big".into()]], TopicRemainder::Ready)
    );
}

pub(crate) async fn an_oversized_job_does_not_come_after_another(q: Fixture) {
    q.store.enqueue(vec![sized("small", 1), sized("big", 50)]).await.unwrap();
    let claimed =
        q.claim_for(TOPIC, vec![StreamDemand { bytes: 10, oversize: true, ..taker() }]).await;
    assert_eq!(
        (shares(&claimed), claimed.remainder),
        (vec![vec!["small".into()]], TopicRemainder::Ready)
    );
}

pub(crate) async fn a_job_goes_to_the_taker_that_it_fits(q: Fixture) {
    q.store.enqueue(vec![sized("big", 50), sized("small", 1)]).await.unwrap();
    let takers = [10, 100].map(|bytes| StreamDemand { bytes, oversize: false, ..taker() }).to_vec();
    assert_eq!(shares(&q.claim_for(TOPIC, takers).await), [["small"], ["big"]]);
}

pub(crate) async fn a_megabyte_job_is_handed_out(q: Fixture) {
    q.store.enqueue(vec![sized("a", 1 << 20), sized("b", 1 << 20)]).await.unwrap();
    let mut found = q.claim_ids().await;
    found.extend(q.claim_ids().await);
    assert_eq!(found, ["a", "b"]);
}

pub(crate) async fn a_long_backlog_comes_in_order_over_several_claims(q: Fixture) {
    let ids: Vec<String> = (0..1_500).map(|n| format!("j{n:04}")).collect();
    q.put_ids(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut found = Vec::new();
    loop {
        let claimed = q.claim_for(TOPIC, vec![taker()]).await;
        let leased = one(claimed.by_stream);
        assert!(leased.len() <= limit::CALL_JOBS_MAX, "{} jobs in one call", leased.len());
        found.extend(ids_of(&leased));
        if claimed.remainder != TopicRemainder::Ready {
            break;
        }
        assert!(!leased.is_empty(), "more is ready and nothing came");
    }
    assert_eq!(found, ids);
}

// === the remainder ===

pub(crate) async fn the_rest_states_when_the_next_job_is_due(q: Fixture) {
    assert_eq!(q.claim_for(TOPIC, vec![taker()]).await.remainder, TopicRemainder::Empty);
    q.put(TestJob { due: after(20), ..new_job("b") }).await;
    let put = q.put(TestJob { due: after(10), ..new_job("a") }).await;
    assert_eq!(q.claim_for(TOPIC, vec![taker()]).await.remainder, TopicRemainder::ReadyAt(put.due));
    q.until(put.due);
    let claimed = q.claim_for(TOPIC, vec![taker()]).await;
    assert_eq!(claimed.remainder, TopicRemainder::ReadyAt(plus(put.due, 10)));
    q.sleep(10);
    assert_eq!(q.claim_for(TOPIC, vec![taker()]).await.remainder, TopicRemainder::Empty);
}

pub(crate) async fn the_rest_states_when_a_retry_is_due(q: Fixture) {
    let leased = q.running("a").await;
    q.end(&leased, failed_for(30)).await;
    let rest = q.claim_for(TOPIC, vec![taker()]).await.remainder;
    assert_eq!(rest, TopicRemainder::ReadyAt(plus(q.now(), 30)));
}

pub(crate) async fn the_last_job_leaves_nothing(q: Fixture) {
    q.put_ids(&["a", "b"]).await;
    let one_job = || vec![StreamDemand { jobs: 1, ..taker() }];
    assert_eq!(q.claim_for(TOPIC, one_job()).await.remainder, TopicRemainder::Ready);
    assert_eq!(q.claim_for(TOPIC, one_job()).await.remainder, TopicRemainder::Empty);
}

pub(crate) async fn expired_jobs_are_not_in_the_way_of_others(q: Fixture) {
    for n in 0..5 {
        q.put(TestJob { expire: Some(after(5)), ..new_job(&format!("expires-{n}")) }).await;
        q.put(new_job(&format!("stays-{n}"))).await;
    }
    q.put(TestJob { due: after(90), ..new_job("later") }).await;
    q.sleep(5);
    let takers = vec![StreamDemand { jobs: 3, ..taker() }];
    let claimed = q.claim_for(TOPIC, takers.clone()).await;
    assert_eq!(shares(&claimed), [["stays-0", "stays-1", "stays-2"]]);
    assert_eq!(claimed.remainder, TopicRemainder::Ready);
    let claimed = q.claim_for(TOPIC, takers).await;
    assert_eq!(shares(&claimed), [["stays-3", "stays-4"]]);
    assert_eq!(claimed.remainder, TopicRemainder::ReadyAt(plus(q.now(), 85)));
}

pub(crate) async fn many_expired_jobs_are_cleared_away_call_by_call(q: Fixture) {
    for call in 0..3 {
        let expires = |n| TestJob { expire: Some(after(5)), ..new_job(&format!("{call}-{n}")) };
        q.store.enqueue((0..500).map(expires).collect()).await.unwrap();
    }
    q.put(new_job("stays")).await;
    q.sleep(5);
    let mut calls = 0;
    loop {
        let claimed = q.claim_for(TOPIC, vec![StreamDemand { jobs: 1, ..taker() }]).await;
        if claimed.remainder != TopicRemainder::Unknown {
            assert_eq!(
                (shares(&claimed), claimed.remainder),
                (vec![vec!["stays".into()]], TopicRemainder::Empty)
            );
            break;
        }
        assert_eq!(shares(&claimed), [[""; 0]], "more was cleared than a call may");
        calls += 1;
    }
    assert!((1..5).contains(&calls), "{calls} calls");
}

pub(crate) async fn expired_jobs_are_no_rest(q: Fixture) {
    q.put(TestJob { expire: Some(after(5)), ..new_job("a") }).await;
    q.sleep(5);
    assert_eq!(q.claim_for(TOPIC, vec![taker()]).await.remainder, TopicRemainder::Empty);
}

pub(crate) async fn a_job_that_expired_before_its_due_time_is_no_rest_once_pruned(q: Fixture) {
    q.put(TestJob { due: after(60), expire: Some(after(5)), ..new_job("a") }).await;
    q.put(TestJob { due: after(70), ..new_job("b") }).await;
    q.sleep(5);
    let (vain, due) =
        (TopicRemainder::ReadyAt(plus(q.now(), 55)), TopicRemainder::ReadyAt(plus(q.now(), 65)));
    let first = q.claim_for(TOPIC, vec![taker()]).await.remainder;
    assert!(first == vain || first == due, "{first:?}");
    q.store.prune(10).await.unwrap();
    assert_eq!(q.claim_for(TOPIC, vec![taker()]).await.remainder, due);
}

pub(crate) async fn a_topic_that_does_not_exist_has_nothing_and_is_not_made(q: Fixture) {
    let claimed = q.claim_for("nowhere", vec![taker(), taker()]).await;
    assert_eq!(
        (shares(&claimed), claimed.remainder),
        (vec![vec![], vec![]], TopicRemainder::Empty)
    );
    assert_eq!(q.store.topics(String::new(), None, 10).await.unwrap(), []);
}

pub(crate) async fn several_topics_are_answered_in_the_order_of_the_asks(q: Fixture) {
    let jobs = vec![job_in("t", "a"), job_in("u", "b"), job_in("u", "c")];
    q.store.enqueue(jobs).await.unwrap();
    let ask = |name| TopicDemand {
        topic: topic(name),
        ageing: None,
        streams: vec![StreamDemand { jobs: 1, ..taker() }],
    };
    let asks = vec![ask("u"), ask("none"), ask("t")];
    let claims = q.store.claim(Claim { nonce: 5, owner: OWNER, topics: asks }).await.unwrap();
    let found: Vec<_> = claims.topics.iter().map(shares).collect();
    assert_eq!(found, [vec![vec!["b".to_owned()]], vec![vec![]], vec![vec!["a".to_owned()]]]);
    let rests: Vec<_> = claims.topics.iter().map(|claimed| claimed.remainder).collect();
    assert_eq!(rests, [TopicRemainder::Ready, TopicRemainder::Empty, TopicRemainder::Empty]);
    assert_eq!(claims.now, q.now());
}

// === the lease ===

pub(crate) async fn the_jobs_own_lease_goes_before_the_takers(q: Fixture) {
    let spec = Spec { lease: Some(Duration::from_secs(5)), ..Spec::default() };
    q.store.enqueue(vec![TestJob { spec, ..new_job("own") }, new_job("other")]).await.unwrap();
    let leased = q.claim(2).await;
    assert_eq!(leased[0].deadline, plus(q.now(), 5));
    assert_eq!(leased[1].deadline, q.now().plus(LEASE));
}

pub(crate) async fn tokens_of_one_claim_differ_and_share_its_nonce(q: Fixture) {
    q.put_ids(&["a", "b", "c"]).await;
    let asks = vec![TopicDemand { topic: topic(TOPIC), ageing: None, streams: vec![taker()] }];
    let nonce = 0xffff_fffe;
    let claims = q.store.claim(Claim { nonce, owner: OWNER, topics: asks }).await.unwrap();
    let leased = &claims.topics[0].by_stream[0];
    let mut tokens: Vec<_> = leased.iter().map(|leased| leased.token).collect();
    assert!(tokens.iter().all(|token| token.nonce() == nonce), "{tokens:?}");
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 3);
}

pub(crate) async fn a_lease_shows_whose_it_is_and_what_deciding_needs(q: Fixture) {
    q.put(new_job("a")).await;
    let grace = Some(Duration::from_millis(1_500));
    let takers = vec![StreamDemand { stream: u32::MAX, grace, ..taker() }];
    let asks = vec![TopicDemand { topic: topic(TOPIC), ageing: None, streams: takers }];
    let claim = Claim { nonce: 9, owner: u32::MAX - 1, topics: asks };
    let leased = q.store.claim(claim).await.unwrap().topics[0].by_stream[0][0].clone();
    q.sleep(2);
    let lease = q.lease(&leased).await.unwrap();
    assert_eq!((lease.owner, lease.stream, lease.grace), (u32::MAX - 1, u32::MAX, grace));
    assert_eq!((lease.key, lease.token), (leased.key, leased.token));
    assert_eq!((lease.deadline, lease.extend_time), (leased.deadline, None));
    assert_eq!((lease.attempt.failures, lease.attempt.deliveries), (0, 0));
    assert_eq!(lease.attempt.first_start, q.now().minus(Duration::from_secs(2)));
    assert_eq!(lease.now, q.now());
}

pub(crate) async fn the_first_start_is_that_of_the_first_attempt(q: Fixture) {
    let leased = q.running("a").await;
    let first = q.now();
    q.end(&leased, failed_for(3)).await;
    q.sleep(3);
    let leased = q.claim_one().await;
    assert_eq!(q.lease(&leased).await.unwrap().attempt.first_start, first);
}

pub(crate) async fn a_delivery_reports_what_came_before_it(q: Fixture) {
    let created = q.now();
    let leased = q.run(TestJob { priority: Some(4), ..new_job("a") }).await;
    assert_eq!((leased.failures, leased.deliveries, leased.priority), (0, 0, 4));
    assert_eq!((&*leased.last_error, leased.due, leased.create_time), ("", created, created));
    q.end(&leased, released()).await;
    let leased = q.claim_one().await;
    assert_eq!((leased.failures, leased.deliveries), (0, 1));
    q.end(&leased, failed_for(3)).await;
    q.sleep(4);
    let leased = q.claim_one().await;
    assert_eq!((leased.failures, leased.deliveries), (1, 2));
    assert_eq!((&*leased.last_error, leased.due), ("it failed", plus(created, 3)));
    assert_eq!((leased.create_time, leased.priority), (created, 4));
}

pub(crate) async fn leases_of_unknown_jobs_and_tokens_are_refused(q: Fixture) {
    use ringq::domain::Token;
    use ringq::store::{LeaseRef, LeaseRefusal};
    let leased = q.running("a").await;
    q.put(TestJob { due: after(9), ..new_job("waiting") }).await;
    let lease = |topic, id, token| LeaseRef { key: super::key(topic, id), token };
    let refs = vec![
        lease("nowhere", "a", leased.token),
        lease(TOPIC, "b", leased.token),
        lease(TOPIC, "a", Token(leased.token.0 ^ 1)),
        lease(TOPIC, "waiting", Token(0)),
        lease(TOPIC, "a", leased.token),
    ];
    let found = q.store.running_leases(refs).await.unwrap();
    let refused: Vec<_> = found.iter().map(|lease| lease.as_ref().err().copied()).collect();
    let (gone, stale) = (Some(LeaseRefusal::NotFound), Some(LeaseRefusal::Stale));
    assert_eq!(refused, [gone, gone, stale, stale, None]);
    assert_ne!(Time(0), found[4].as_ref().unwrap().now);
}

// === undone claims ===

pub(crate) async fn an_ask_for_no_stream_states_what_there_is_and_takes_nothing(q: Fixture) {
    q.store
        .enqueue(vec![job_in("ready", "a"), job_in("failed", "b"), job_in("gone", "c")])
        .await
        .unwrap();
    let late = q.put(TestJob { due: after(60), priority: Some(3), ..job_in("later", "d") }).await;
    for name in ["failed", "gone"] {
        let leased = one(one(q.claim_for(name, vec![taker()]).await.by_stream));
        match name {
            "gone" => drop(q.ack(&leased).await),
            _ => drop(q.end(&leased, failed_for(5)).await),
        }
    }
    let ask = |name: &&str| TopicDemand { topic: topic(name), ageing: None, streams: Vec::new() };
    let names = ["ready", "failed", "gone", "later", "nowhere"];
    let claim = Claim { nonce: q.nonce(), owner: OWNER, topics: names.iter().map(ask).collect() };
    let claims = q.store.claim(claim).await.unwrap();
    let rests: Vec<TopicRemainder> =
        claims.topics.iter().map(|claimed| claimed.remainder).collect();
    let retry = TopicRemainder::ReadyAt(plus(q.now(), 5));
    assert_eq!(
        rests,
        [
            TopicRemainder::Ready,
            retry,
            TopicRemainder::Empty,
            TopicRemainder::ReadyAt(late.due),
            TopicRemainder::Empty
        ]
    );
    assert!(claims.topics.iter().all(|claimed| claimed.by_stream.is_empty()));
    assert_eq!(q.stats("ready").await.ready, 1);
}

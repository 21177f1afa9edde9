use super::*;
use crate::domain::{JobId, JobKey, Payload, Spec, TopicName, limit};

const NOW: Time = Time(0);
const AT: Origin = Origin { shard: 0, now: NOW, skew: Skew::NONE };

fn seconds(n: i64) -> Time {
    Time(n * 1_000_000)
}

fn options(jobs: u32, bytes: u64) -> StreamOptions {
    StreamOptions {
        topics: Vec::new(),
        max_in_flight: jobs,
        max_in_flight_bytes: bytes,
        max_batch: 64,
        lease: Duration::from_secs(30),
        heartbeat: Duration::from_secs(20),
        max_jobs: None,
        idle_timeout: None,
        orphan_grace: Duration::from_secs(5),
        worker_id: "".into(),
        continues: None,
        peer: String::new(),
        user_agent: String::new(),
    }
}

fn ledger(jobs: u32) -> Ledger {
    Ledger::new(&options(jobs, 64 << 20), Mode::Stream, 1, false)
}

fn job(token: u64, bytes: usize) -> Leased {
    let payload = Payload { body: vec![0; bytes].into(), ..Payload::default() };
    Leased {
        key: JobKey { topic: TopicName::stored("t"), id: JobId::stored(&token.to_string()) },
        token: Token(token),
        fence: NOW,
        deadline: seconds(30),
        spec: Spec { payload: Some(payload), ..Spec::default() },
        priority: 0,
        failures: 0,
        deliveries: 0,
        due: NOW,
        create_time: NOW,
        last_error: String::new(),
        checkpoint: None,
    }
}

fn all(free: Share) -> Share {
    Share { oversize: false, ..free }
}

fn claim(ledger: &mut Ledger, jobs: Vec<Leased>) -> Granted {
    let share = ledger.reserve(0, all).unwrap();
    ledger.grant(share, jobs, AT)
}

fn tokens(taken: &Taken) -> Vec<u64> {
    taken.jobs.iter().map(|unsent| unsent.job.token.0).collect()
}

#[test]
fn what_is_reserved_is_not_free_until_it_is_granted() {
    let mut ledger = ledger(4);
    let share = ledger
        .reserve(0, |free| Share { jobs: 3, bytes: free.bytes / 2, oversize: false })
        .unwrap();
    assert_eq!(ledger.free().unwrap().jobs, 1);
    assert!(ledger.grant(share, vec![job(1, 10)], AT).hungry);
    assert_eq!(ledger.free().unwrap().jobs, 3);
}

#[test]
fn a_message_takes_what_is_there_up_to_its_bounds_and_at_least_one_job() {
    let mut ledger = ledger(100);
    claim(&mut ledger, (0..5).map(|token| job(token, 10)).collect());
    assert_eq!(tokens(&ledger.take(NOW, 3)), [0, 1, 2]);
    assert_eq!(tokens(&ledger.take(NOW, 3)), [3, 4]);
    let (large, mib) = (limit::MESSAGE_BYTES_MAX + 8_000, limit::MESSAGE_BYTES_MAX);
    let half = mib / 2 - 256;
    claim(&mut ledger, vec![job(5, large), job(6, half), job(7, half), job(8, 1)]);
    assert_eq!(tokens(&ledger.take(NOW, 64)), [5]);
    assert_eq!(tokens(&ledger.take(NOW, 64)), [6, 7]);
    assert_eq!(tokens(&ledger.take(NOW, 64)), [8]);
    assert_eq!(ledger.in_flight(), 9);
}

#[test]
fn errors_names_and_revocations_count_for_the_size_of_a_message() {
    let mut ledger = ledger(10_000);
    let name = "x".repeat(100);
    let failed = |token| {
        let id = JobId::stored(&format!("{name}{token}"));
        let key = JobKey { topic: TopicName::stored(&name), id };
        Leased { key, last_error: "e".repeat(limit::ERROR_BYTES_MAX), ..job(token, 0) }
    };
    let mut sent = Vec::new();
    for claimed in 0..10 {
        claim(&mut ledger, (0..512).map(|n| failed(claimed * 512 + n)).collect());
        while let taken = ledger.take(NOW, 1_000)
            && !taken.jobs.is_empty()
        {
            assert!(taken.jobs.len() * (limit::ERROR_BYTES_MAX + 500) < limit::MESSAGE_BYTES_MAX);
            sent.extend(tokens(&taken));
        }
    }
    assert_eq!(sent.len(), 5_120);
    sent.iter().for_each(|&token| ledger.revoke(0, Token(token), Revoked::Deleted));
    claim(&mut ledger, vec![job(9_999, limit::PAYLOAD_BYTES_MAX)]);
    ledger.drain();
    let mut revoked = Vec::new();
    loop {
        let taken = ledger.take(NOW, 1_000);
        assert!(taken.revocations.len() * 500 < limit::MESSAGE_BYTES_MAX);
        revoked.extend(taken.revocations.iter().map(|r| r.lease.lease.token.0));
        if taken.draining {
            break;
        }
    }
    assert_eq!(revoked, sent, "all of them before the stream ends");
}

#[test]
fn what_the_transport_has_not_taken_bounds_what_is_claimed() {
    let mut ledger = ledger(100);
    let half = usize::try_from(limit::PREFETCH_BYTES_MAX / 2).unwrap();
    claim(&mut ledger, vec![job(1, half)]);
    assert_eq!(ledger.free().unwrap().bytes, limit::PREFETCH_BYTES_MAX / 2);
    claim(&mut ledger, vec![job(2, half)]);
    assert_eq!(ledger.free(), None);
    assert!(ledger.take(NOW, 1).wake_feeds, "there is room again, and the feed waits for it");
}

#[test]
fn room_that_a_transport_makes_under_a_claim_keeps_its_feed_awake() {
    let mut ledger = ledger(100);
    claim(&mut ledger, vec![job(1, 2_000_000)]);
    // What is left of the outbox is too small for the next job, so the claim will find nothing.
    let share = ledger.reserve(0, all).unwrap();
    assert_eq!(tokens(&ledger.take(NOW, 64)), [1]);
    ledger.grant(share, Vec::new(), AT);
    assert!(
        ledger.wait_for_credit(0, share, NOW).is_none(),
        "there is room by now, and no later event wakes the feed"
    );
}

#[test]
fn a_stream_of_so_many_jobs_claims_no_more_and_is_complete_when_they_are_sent() {
    let options = StreamOptions { max_jobs: Some(2), ..options(10, 1_000) };
    let mut ledger = Ledger::new(&options, Mode::Stream, 1, false);
    assert_eq!(ledger.free().unwrap().jobs, 2);
    claim(&mut ledger, vec![job(1, 10)]);
    assert_eq!(ledger.free().unwrap().jobs, 1);
    assert!(!ledger.take(NOW, 64).complete);
    claim(&mut ledger, vec![job(2, 10)]);
    assert_eq!(ledger.free(), None);
    ledger.release(Token(1));
    assert_eq!(ledger.free(), None);
    assert!(ledger.take(NOW, 64).complete);
}

#[test]
fn a_revoked_job_is_told_of_only_if_it_was_sent() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10), job(2, 10)]);
    ledger.take(NOW, 1);
    ledger.revoke(0, Token(1), Revoked::Deleted);
    ledger.revoke(0, Token(2), Revoked::Deleted);
    ledger.revoke(0, Token(3), Revoked::Deleted);
    let taken = ledger.take(NOW, 64);
    assert!(taken.jobs.is_empty());
    assert_eq!(
        taken.revocations.iter().map(|r| r.lease.lease.token).collect::<Vec<_>>(),
        [Token(1)]
    );
    assert_eq!(ledger.free().unwrap().jobs, 10);
}

#[test]
fn a_lease_that_ran_out_before_it_was_sent_is_not_sent() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10)]);
    let taken = ledger.take(seconds(30), 64);
    assert_eq!((taken.jobs.len(), taken.late.len(), ledger.in_flight()), (0, 1, 0));
}

#[test]
fn closing_tells_what_was_not_sent_from_what_was() {
    for ended in [true, false] {
        let mut ledger = ledger(10);
        claim(&mut ledger, vec![job(1, 10), job(2, 10)]);
        ledger.take(NOW, 1);
        let remains = ledger.close((!ended).then_some(NOW));
        let of =
            |leases: &[StreamLease]| leases.iter().map(|l| l.lease.token.0).collect::<Vec<_>>();
        assert_eq!(of(&remains.unsent), [2]);
        assert_eq!(of(&remains.sent), [1]);
        assert_eq!(ledger.in_flight(), 1, "until it is settled, released or adopted");
    }
}

#[test]
fn what_was_sent_is_let_go_once_when_the_server_ends_a_stream() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10)]);
    ledger.take(NOW, 1);
    assert!(ledger.drain().is_empty());
    assert_eq!((ledger.close(None).sent.len(), ledger.close(None).sent.len()), (1, 0));
    let mut pull = Ledger::new(&options(10, 1_000), Mode::Pull, 1, false);
    claim(&mut pull, vec![job(1, 10)]);
    pull.take(NOW, 1);
    assert!(pull.close(None).sent.is_empty(), "no stream ever answered for it");
}

#[test]
fn a_feed_that_waits_for_room_is_woken_whatever_it_is_granted_meanwhile() {
    let mut ledger = Ledger::new(&options(10, 1_000), Mode::Stream, 1, false);
    claim(&mut ledger, vec![job(1, 600)]);
    let share = ledger.reserve(0, all).unwrap();
    assert!(ledger.grant(share, Vec::new(), AT).hungry);
    assert!(ledger.wait_for_credit(0, share, NOW).is_some());
    let granted = claim(&mut ledger, vec![job(2, 10)]);
    assert!(granted.hungry && granted.wake_feeds.is_empty(), "it knows what it reserved");
    ledger.release(Token(1));
    assert!(ledger.wake_feeds());
    assert!(!ledger.wake_feeds(), "once");
}

#[test]
fn a_feed_is_woken_by_what_another_did_not_use_only_if_that_may_be_enough() {
    let mut ledger = Ledger::new(&options(10, 1_000), Mode::Stream, 2, false);
    claim(&mut ledger, vec![job(1, 100)]);
    let nothing = |ledger: &mut Ledger, feed, share| {
        let at = Origin { shard: feed, ..AT };
        ledger.grant(share, Vec::new(), at).wake_feeds
    };
    let other = ledger.reserve(1, |_| Share { jobs: 1, bytes: 500, oversize: false }).unwrap();
    let share = ledger.reserve(0, all).unwrap();
    assert_eq!(share.bytes, 400);
    assert!(nothing(&mut ledger, 0, share).is_empty());
    assert!(ledger.wait_for_credit(0, share, NOW).is_some(), "the other half is reserved");
    assert_eq!(nothing(&mut ledger, 1, other), [0]);
    assert!(ledger.wait_for_credit(0, share, NOW).is_none(), "there is more by now");
    // Too large for all that is free, on both: neither wakes the other.
    for feed in [0, 1, 0] {
        let share = ledger.reserve(feed, all).unwrap();
        assert!(nothing(&mut ledger, feed, share).is_empty(), "{feed}");
        assert!(ledger.wait_for_credit(feed, share, NOW).is_some(), "{feed}");
    }
    ledger.release(Token(1));
    assert!(ledger.wake_feeds());
}

#[test]
fn a_transport_that_does_not_read_loses_what_waits_for_it_and_gets_no_more() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10), job(2, 10)]);
    ledger.take(NOW, 1);
    let look = ledger.look(seconds(9));
    assert_eq!((look.stale.len(), look.next), (0, seconds(10)));
    let look = ledger.look(seconds(10));
    assert_eq!(look.stale[0].lease.token, Token(2));
    assert_eq!(look.next, seconds(31), "then the lease that was sent has run out");
    assert_eq!(ledger.free(), None);
    assert!(ledger.take(seconds(10), 64).jobs.is_empty());
    assert_eq!(ledger.free().unwrap().jobs, 9);
}

#[test]
fn what_is_not_read_goes_back_within_ten_seconds_however_long_its_lease() {
    for (lease, stale_at) in
        [(1_000, 333), (3_000, 1_000), (30_000, 10_000), (1_800_000, 10_000), (86_400_000, 10_000)]
    {
        let millis = |n: i64| Time(n * 1_000);
        let mut ledger = ledger(10);
        let granted = claim(&mut ledger, vec![Leased { deadline: millis(lease), ..job(1, 10) }]);
        assert_eq!(granted.look_at.0 / 1_000, stale_at, "{lease}");
        assert!(ledger.look(millis(stale_at - 1)).stale.is_empty(), "{lease}");
        let look = ledger.look(millis(stale_at + 1));
        assert_eq!((look.stale.len(), ledger.in_flight(), ledger.free()), (1, 0, None), "{lease}");
        ledger.take(millis(stale_at + 2), 64);
        assert_eq!(ledger.free().unwrap().jobs, 10, "{lease}");
    }
}

#[test]
fn what_is_revoked_before_its_claim_is_answered_is_not_delivered() {
    let mut ledger = Ledger::new(&options(4, 1_000), Mode::Stream, 2, false);
    ledger.revoke(0, Token(9), Revoked::Deleted);
    let half = |_: Share| Share { jobs: 2, bytes: 100, oversize: false };
    let (one, other) = (ledger.reserve(0, half).unwrap(), ledger.reserve(0, half).unwrap());
    ledger.revoke(0, Token(2), Revoked::Deleted);
    ledger.revoke(0, Token(3), Revoked::LeaseExpired);
    ledger.revoke(1, Token(4), Revoked::Deleted);
    ledger.grant(one, vec![job(1, 10), job(2, 10)], AT);
    ledger.grant(other, vec![job(3, 10), job(4, 10)], AT);
    let taken = ledger.take(NOW, 64);
    assert_eq!((tokens(&taken), taken.revocations.len()), (vec![1, 4], 0));
    assert_eq!(ledger.free().unwrap().jobs, 2, "the credit of the others is free");
    // It is over with that claim: no later one has those tokens.
    claim(&mut ledger, vec![job(2, 10)]);
    assert_eq!(tokens(&ledger.take(NOW, 64)), [2]);
}

#[test]
fn a_lease_that_ran_out_without_a_word_is_looked_up() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10)]);
    ledger.take(NOW, 64);
    ledger.look(seconds(10));
    assert_eq!(ledger.look(seconds(31)).unsure[0].lease.token, Token(1));
    ledger.extended(Token(1), seconds(60));
    let look = ledger.look(seconds(32));
    assert_eq!((look.unsure.len(), look.next), (0, seconds(61)));
}

#[test]
fn a_pull_is_served_once() {
    let mut ledger = Ledger::new(&options(10, 1_000), Mode::Pull, 1, false);
    assert_eq!(ledger.progress(), PullProgress::Nothing);
    claim(&mut ledger, vec![job(1, 10)]);
    assert_eq!(ledger.free().map(|free| free.jobs), Some(9), "other shards may have more");
    assert_eq!(ledger.progress(), PullProgress::Some);
    let other = ledger.reserve(0, all).unwrap();
    ledger.answered();
    assert_eq!(ledger.progress(), PullProgress::Some, "one is asked and has not answered");
    ledger.grant(other, Vec::new(), AT);
    assert_eq!(ledger.progress(), PullProgress::All);
    assert_eq!(ledger.take(NOW, 64).jobs.len(), 1);
    assert_eq!(ledger.free(), None);
}

#[test]
fn times_are_kept_on_the_clock_of_the_replica() {
    let mut ledger = ledger(10);
    let share = ledger.reserve(0, all).unwrap();
    let skew = Skew::measured(seconds(100), seconds(0), seconds(100));
    let at = Origin { shard: 0, now: seconds(100), skew };
    ledger.grant(share, vec![job(1, 10)], at);
    let taken = ledger.take(seconds(100), 1);
    assert_eq!(taken.jobs[0].left(seconds(101)), Duration::from_secs(29));
    assert_eq!(taken.jobs[0].lag(seconds(101)), Duration::from_secs(1));
}

#[test]
fn a_stream_without_credit_asks_about_what_it_holds_after_1_2_4_and_at_most_30_seconds() {
    let mut ledger = Ledger::new(&options(2, 1_000), Mode::Stream, 1, true);
    let granted = claim(&mut ledger, vec![Leased { deadline: seconds(900), ..job(1, 10) }]);
    assert!(granted.hungry && granted.look_at == seconds(10), "there is credit left");
    let granted = claim(&mut ledger, vec![Leased { deadline: seconds(900), ..job(2, 10) }]);
    assert_eq!(granted.look_at, seconds(1));
    ledger.take(NOW, 64);
    let mut asked = Vec::new();
    let mut now = NOW;
    while asked.len() < 7 {
        let look = ledger.look(now);
        if look.check_credit {
            asked.push(now.0 / 1_000_000);
        }
        assert!(look.next > now);
        now = look.next;
    }
    assert_eq!(asked, [1, 3, 7, 15, 31, 61, 91]);
    ledger.release(Token(1));
    assert!(ledger.wake_feeds());
    assert!(!ledger.look(seconds(200)).check_credit, "there is credit again");
    let share = ledger.reserve(0, all).unwrap();
    let at = Origin { now: seconds(200), ..AT };
    let granted = ledger.grant(share, vec![Leased { deadline: seconds(900), ..job(3, 10) }], at);
    assert_eq!(granted.look_at, seconds(201), "it begins anew");
}

#[test]
fn a_stream_that_waits_for_room_asks_too_and_one_that_nobody_else_settles_does_not() {
    for shared in [true, false] {
        let mut ledger = Ledger::new(&options(10, 1_000), Mode::Stream, 1, shared);
        claim(&mut ledger, vec![job(1, 600)]);
        ledger.take(NOW, 64);
        let share = ledger.reserve(0, all).unwrap();
        ledger.grant(share, Vec::new(), AT);
        let look_at = ledger.wait_for_credit(0, share, NOW).unwrap();
        assert_eq!(look_at == seconds(1), shared);
        assert_eq!(ledger.look(seconds(1)).check_credit, shared);
    }
}

#[test]
fn an_earlier_deadline_brings_the_look_forward() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10)]);
    ledger.take(NOW, 64);
    ledger.look(seconds(10));
    assert_eq!(ledger.look_at(), seconds(31));
    ledger.extended(Token(1), seconds(12));
    assert_eq!(ledger.look_at(), seconds(13));
    assert_eq!(ledger.look(seconds(13)).unsure.len(), 1);
}

/// The bound of what a stream owes: beyond it a lease keeps its credit, and none is forgotten.
#[test]
fn a_stream_owes_as_many_leases_as_it_may_hold() {
    for jobs in [1, 2, 3, 7] {
        let mut ledger = ledger(jobs);
        for first in [0, 100] {
            let tokens = || first..first + u64::from(jobs);
            claim(&mut ledger, tokens().map(|token| job(token, 1)).collect());
            ledger.take(NOW, 64);
            tokens().for_each(|token| ledger.owe(Token(token)));
        }
        assert_eq!(
            (ledger.in_flight(), ledger.free()),
            (jobs, None),
            "the second ones keep theirs"
        );
        assert_eq!(ledger.close(Some(NOW)).sent.len(), 2 * jobs as usize);
    }
}

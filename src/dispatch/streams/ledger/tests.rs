use crate::domain::{JobId, JobKey, Payload, Spec, TopicName, limit};

use super::*;

const NOW: Time = Time(0);
const AT: ClaimOrigin = ClaimOrigin { shard: 0, claimed_at: NOW, skew: Skew::NONE };

fn seconds(n: i64) -> Time {
    Time(n * 1_000_000)
}

fn options(jobs: u32, bytes: u64) -> StreamOptions {
    StreamOptions {
        topics: Vec::new(),
        topic_weights: Vec::new(),
        max_in_flight: jobs,
        max_in_flight_bytes: bytes,
        max_batch: 64,
        lease: Duration::from_secs(30),
        names_lease: false,
        heartbeat: Duration::from_secs(20),
        max_jobs: None,
        idle_timeout: None,
        orphan_grace: Duration::from_secs(5),
        worker_id: "".into(),
        identity: None,
        continues: None,
        peer: String::new(),
        user_agent: String::new(),
    }
}

fn ledger(jobs: u32) -> StreamLedger {
    StreamLedger::new(&options(jobs, 64 << 20), StreamMode::Stream, 1, false)
}

fn job(token: u64, bytes: usize) -> LeasedJob {
    let payload = Payload { body: vec![0; bytes].into(), ..Payload::default() };
    LeasedJob {
        key: JobKey { topic: TopicName::stored("t"), id: JobId::stored(&token.to_string()) },
        token: Token(token),
        fence: NOW,
        deadline: seconds(30),
        spec: Spec { payload: Some(payload), ..Spec::default() },
        priority: 0,
        failures: 0,
        deliveries: 0,
        crashes: 0,
        due: NOW,
        create_time: NOW,
        last_error: String::new(),
        checkpoint: None,
    }
}

fn all(free: CreditShare) -> CreditShare {
    CreditShare { oversize: false, ..free }
}

fn claim(ledger: &mut StreamLedger, jobs: Vec<LeasedJob>) -> GrantOutcome {
    let share = ledger.reserve(0, all).unwrap();
    ledger.grant(share, jobs, AT)
}

fn tokens(taken: &MessageContent) -> Vec<u64> {
    taken.jobs.iter().map(|unsent| unsent.job.token.0).collect()
}

#[test]
fn what_is_reserved_is_not_free_until_it_is_granted() {
    let mut ledger = ledger(4);
    let share = ledger
        .reserve(0, |free| CreditShare { jobs: 3, bytes: free.bytes / 2, oversize: false })
        .unwrap();
    assert_eq!(ledger.free_share().unwrap().jobs, 1);
    assert!(ledger.grant(share, vec![job(1, 10)], AT).hungry);
    assert_eq!(ledger.free_share().unwrap().jobs, 3);
}

#[test]
fn a_message_takes_what_is_there_up_to_its_bounds_and_at_least_one_job() {
    let mut ledger = ledger(100);
    claim(&mut ledger, (0..5).map(|token| job(token, 10)).collect());
    assert_eq!(tokens(&ledger.take_message(NOW, 3)), [0, 1, 2]);
    assert_eq!(tokens(&ledger.take_message(NOW, 3)), [3, 4]);
    let (large, mib) = (limit::MESSAGE_BYTES_MAX + 8_000, limit::MESSAGE_BYTES_MAX);
    let half = mib / 2 - 256;
    claim(&mut ledger, vec![job(5, large), job(6, half), job(7, half), job(8, 1)]);
    assert_eq!(tokens(&ledger.take_message(NOW, 64)), [5]);
    assert_eq!(tokens(&ledger.take_message(NOW, 64)), [6, 7]);
    assert_eq!(tokens(&ledger.take_message(NOW, 64)), [8]);
    assert_eq!(ledger.in_flight_count(), 9);
}

#[test]
fn errors_names_and_revocations_count_for_the_size_of_a_message() {
    let mut ledger = ledger(10_000);
    let name = "x".repeat(100);
    let failed = |token| {
        let id = JobId::stored(&format!("{name}{token}"));
        let key = JobKey { topic: TopicName::stored(&name), id };
        LeasedJob { key, last_error: "e".repeat(limit::ERROR_BYTES_MAX), ..job(token, 0) }
    };
    let mut sent = Vec::new();
    for claimed in 0..10 {
        claim(&mut ledger, (0..512).map(|n| failed(claimed * 512 + n)).collect());
        while let taken = ledger.take_message(NOW, 1_000)
            && !taken.jobs.is_empty()
        {
            assert!(taken.jobs.len() * (limit::ERROR_BYTES_MAX + 500) < limit::MESSAGE_BYTES_MAX);
            sent.extend(tokens(&taken));
        }
    }
    assert_eq!(sent.len(), 5_120);
    sent.iter().for_each(|&token| ledger.revoke(0, Token(token), RevokeReason::Deleted));
    claim(&mut ledger, vec![job(9_999, limit::PAYLOAD_BYTES_MAX)]);
    ledger.drain();
    let mut revoked = Vec::new();
    loop {
        let taken = ledger.take_message(NOW, 1_000);
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
    assert_eq!(ledger.free_share().unwrap().bytes, limit::PREFETCH_BYTES_MAX / 2);
    claim(&mut ledger, vec![job(2, half)]);
    assert_eq!(ledger.free_share(), None);
    assert!(
        ledger.take_message(NOW, 1).wake_feeds,
        "there is room again, and the feed waits for it"
    );
}

#[test]
fn room_that_a_transport_makes_under_a_claim_keeps_its_feed_awake() {
    let mut ledger = ledger(100);
    claim(&mut ledger, vec![job(1, 2_000_000)]);
    // The remaining bytes of the outbox are too few for the next job, so the claim will find nothing.
    let share = ledger.reserve(0, all).unwrap();
    assert_eq!(tokens(&ledger.take_message(NOW, 64)), [1]);
    ledger.grant(share, Vec::new(), AT);
    assert!(
        ledger.wait_for_credit(0, share, NOW).is_none(),
        "there is room by now, and no later event wakes the feed"
    );
}

#[test]
fn a_stream_of_so_many_jobs_claims_no_more_and_is_complete_when_they_are_sent() {
    let options = StreamOptions { max_jobs: Some(2), ..options(10, 1_000) };
    let mut ledger = StreamLedger::new(&options, StreamMode::Stream, 1, false);
    assert_eq!(ledger.free_share().unwrap().jobs, 2);
    claim(&mut ledger, vec![job(1, 10)]);
    assert_eq!(ledger.free_share().unwrap().jobs, 1);
    assert!(!ledger.take_message(NOW, 64).complete);
    claim(&mut ledger, vec![job(2, 10)]);
    assert_eq!(ledger.free_share(), None);
    ledger.release(Token(1));
    assert_eq!(ledger.free_share(), None);
    assert!(ledger.take_message(NOW, 64).complete);
}

#[test]
fn revocation_is_sent_only_for_a_sent_job() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10), job(2, 10)]);
    ledger.take_message(NOW, 1);
    ledger.revoke(0, Token(1), RevokeReason::Deleted);
    ledger.revoke(0, Token(2), RevokeReason::Deleted);
    ledger.revoke(0, Token(3), RevokeReason::Deleted);
    let taken = ledger.take_message(NOW, 64);
    assert!(taken.jobs.is_empty());
    assert_eq!(
        taken.revocations.iter().map(|r| r.lease.lease.token).collect::<Vec<_>>(),
        [Token(1)]
    );
    assert_eq!(ledger.free_share().unwrap().jobs, 10);
}

#[test]
fn a_lease_that_ran_out_before_it_was_sent_is_not_sent() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10)]);
    let taken = ledger.take_message(seconds(30), 64);
    assert_eq!((taken.jobs.len(), taken.late.len(), ledger.in_flight_count()), (0, 1, 0));
}

#[test]
fn close_separates_unsent_from_sent_leases() {
    for ended in [true, false] {
        let mut ledger = ledger(10);
        claim(&mut ledger, vec![job(1, 10), job(2, 10)]);
        ledger.take_message(NOW, 1);
        let remains = ledger.close((!ended).then_some(NOW));
        let of =
            |leases: &[StreamLease]| leases.iter().map(|l| l.lease.token.0).collect::<Vec<_>>();
        assert_eq!(of(&remains.unsent), [2]);
        assert_eq!(of(&remains.sent), [1]);
        assert_eq!(ledger.in_flight_count(), 1, "until it is settled, released or adopted");
    }
}

#[test]
fn drain_returns_sent_leases_once() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10)]);
    ledger.take_message(NOW, 1);
    assert!(ledger.drain().is_empty());
    assert_eq!((ledger.close(None).sent.len(), ledger.close(None).sent.len()), (1, 0));
    let mut pull = StreamLedger::new(&options(10, 1_000), StreamMode::Pull, 1, false);
    claim(&mut pull, vec![job(1, 10)]);
    pull.take_message(NOW, 1);
    assert!(pull.close(None).sent.is_empty(), "its leases belong to no stream");
}

#[test]
fn a_feed_that_waits_for_room_is_woken_whatever_it_is_granted_meanwhile() {
    let mut ledger = StreamLedger::new(&options(10, 1_000), StreamMode::Stream, 1, false);
    claim(&mut ledger, vec![job(1, 600)]);
    let share = ledger.reserve(0, all).unwrap();
    assert!(ledger.grant(share, Vec::new(), AT).hungry);
    assert!(ledger.wait_for_credit(0, share, NOW).is_some());
    let granted = claim(&mut ledger, vec![job(2, 10)]);
    assert!(granted.hungry && granted.wake_feeds.is_empty(), "the feed itself has the reservation");
    ledger.release(Token(1));
    assert!(ledger.wake_feeds());
    assert!(!ledger.wake_feeds(), "once");
}

#[test]
fn a_feed_is_woken_by_what_another_did_not_use_only_if_that_may_be_enough() {
    let mut ledger = StreamLedger::new(&options(10, 1_000), StreamMode::Stream, 2, false);
    claim(&mut ledger, vec![job(1, 100)]);
    let nothing = |ledger: &mut StreamLedger, feed, share| {
        let at = ClaimOrigin { shard: feed, ..AT };
        ledger.grant(share, Vec::new(), at).wake_feeds
    };
    let other =
        ledger.reserve(1, |_| CreditShare { jobs: 1, bytes: 500, oversize: false }).unwrap();
    let share = ledger.reserve(0, all).unwrap();
    assert_eq!(share.bytes, 400);
    assert!(nothing(&mut ledger, 0, share).is_empty());
    assert!(ledger.wait_for_credit(0, share, NOW).is_some(), "the other half is reserved");
    assert_eq!(nothing(&mut ledger, 1, other), [0]);
    assert!(ledger.wait_for_credit(0, share, NOW).is_none(), "there is more by now");
    // Too large for all free bytes, on both: neither wakes the other.
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
    ledger.take_message(NOW, 1);
    let check = ledger.check_deadlines(seconds(9));
    assert_eq!((check.stale.len(), check.next_check), (0, seconds(10)));
    let check = ledger.check_deadlines(seconds(10));
    assert_eq!(check.stale[0].lease.token, Token(2));
    assert_eq!(check.next_check, seconds(31), "then the lease that was sent has run out");
    assert_eq!(ledger.free_share(), None);
    assert!(ledger.take_message(seconds(10), 64).jobs.is_empty());
    assert_eq!(ledger.free_share().unwrap().jobs, 9);
}

#[test]
fn unread_jobs_are_returned_within_ten_seconds() {
    for (lease, stale_at) in
        [(1_000, 333), (3_000, 1_000), (30_000, 10_000), (1_800_000, 10_000), (86_400_000, 10_000)]
    {
        let millis = |n: i64| Time(n * 1_000);
        let mut ledger = ledger(10);
        let granted = claim(&mut ledger, vec![LeasedJob { deadline: millis(lease), ..job(1, 10) }]);
        assert_eq!(granted.next_check.0 / 1_000, stale_at, "{lease}");
        assert!(ledger.check_deadlines(millis(stale_at - 1)).stale.is_empty(), "{lease}");
        let check = ledger.check_deadlines(millis(stale_at + 1));
        assert_eq!(
            (check.stale.len(), ledger.in_flight_count(), ledger.free_share()),
            (1, 0, None),
            "{lease}"
        );
        ledger.take_message(millis(stale_at + 2), 64);
        assert_eq!(ledger.free_share().unwrap().jobs, 10, "{lease}");
    }
}

#[test]
fn what_is_revoked_before_its_claim_is_answered_is_not_delivered() {
    let mut ledger = StreamLedger::new(&options(4, 1_000), StreamMode::Stream, 2, false);
    ledger.revoke(0, Token(9), RevokeReason::Deleted);
    let half = |_: CreditShare| CreditShare { jobs: 2, bytes: 100, oversize: false };
    let (one, other) = (ledger.reserve(0, half).unwrap(), ledger.reserve(0, half).unwrap());
    ledger.revoke(0, Token(2), RevokeReason::Deleted);
    ledger.revoke(0, Token(3), RevokeReason::LeaseExpired);
    ledger.revoke(1, Token(4), RevokeReason::Deleted);
    ledger.grant(one, vec![job(1, 10), job(2, 10)], AT);
    ledger.grant(other, vec![job(3, 10), job(4, 10)], AT);
    let taken = ledger.take_message(NOW, 64);
    assert_eq!((tokens(&taken), taken.revocations.len()), (vec![1, 4], 0));
    assert_eq!(ledger.free_share().unwrap().jobs, 2, "the credit of the others is free");
    // Revoked tokens are cleared with that claim: no later one has them.
    claim(&mut ledger, vec![job(2, 10)]);
    assert_eq!(tokens(&ledger.take_message(NOW, 64)), [2]);
}

#[test]
fn expired_lease_is_looked_up() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10)]);
    ledger.take_message(NOW, 64);
    ledger.check_deadlines(seconds(10));
    assert_eq!(ledger.check_deadlines(seconds(31)).overdue[0].lease.token, Token(1));
    ledger.set_deadline(Token(1), seconds(60));
    let check = ledger.check_deadlines(seconds(32));
    assert_eq!((check.overdue.len(), check.next_check), (0, seconds(61)));
}

#[test]
fn a_pull_is_served_once() {
    let mut ledger = StreamLedger::new(&options(10, 1_000), StreamMode::Pull, 1, false);
    assert_eq!(ledger.pull_progress(), PullProgress::Nothing);
    claim(&mut ledger, vec![job(1, 10)]);
    assert_eq!(ledger.free_share().map(|free| free.jobs), Some(9), "other shards may have more");
    assert_eq!(ledger.pull_progress(), PullProgress::Some);
    let other = ledger.reserve(0, all).unwrap();
    ledger.count_claimed_feed();
    assert_eq!(ledger.pull_progress(), PullProgress::Some, "one claim is in flight");
    ledger.grant(other, Vec::new(), AT);
    assert_eq!(ledger.pull_progress(), PullProgress::All);
    assert_eq!(ledger.take_message(NOW, 64).jobs.len(), 1);
    assert_eq!(ledger.free_share(), None);
}

#[test]
fn times_are_kept_on_the_clock_of_the_replica() {
    let mut ledger = ledger(10);
    let share = ledger.reserve(0, all).unwrap();
    let skew = Skew::measured(seconds(100), seconds(0), seconds(100));
    let at = ClaimOrigin { shard: 0, claimed_at: seconds(100), skew };
    ledger.grant(share, vec![job(1, 10)], at);
    let taken = ledger.take_message(seconds(100), 1);
    assert_eq!(taken.jobs[0].lease_left(seconds(101)), Duration::from_secs(29));
    assert_eq!(taken.jobs[0].lag(seconds(101)), Duration::from_secs(1));
}

#[test]
fn stream_without_credit_looks_up_its_leases_after_1_2_4_up_to_30_seconds() {
    let mut ledger = StreamLedger::new(&options(2, 1_000), StreamMode::Stream, 1, true);
    let granted = claim(&mut ledger, vec![LeasedJob { deadline: seconds(900), ..job(1, 10) }]);
    assert!(granted.hungry && granted.next_check == seconds(10), "there is credit left");
    let granted = claim(&mut ledger, vec![LeasedJob { deadline: seconds(900), ..job(2, 10) }]);
    assert_eq!(granted.next_check, seconds(1));
    ledger.take_message(NOW, 64);
    let mut asked = Vec::new();
    let mut now = NOW;
    while asked.len() < 7 {
        let check = ledger.check_deadlines(now);
        if check.check_credit {
            asked.push(now.0 / 1_000_000);
        }
        assert!(check.next_check > now);
        now = check.next_check;
    }
    assert_eq!(asked, [1, 3, 7, 15, 31, 61, 91]);
    ledger.release(Token(1));
    assert!(ledger.wake_feeds());
    assert!(!ledger.check_deadlines(seconds(200)).check_credit, "there is credit again");
    let share = ledger.reserve(0, all).unwrap();
    let at = ClaimOrigin { claimed_at: seconds(200), ..AT };
    let granted = ledger.grant(share, vec![LeasedJob { deadline: seconds(900), ..job(3, 10) }], at);
    assert_eq!(granted.next_check, seconds(201), "it begins anew");
}

#[test]
fn credit_check_runs_only_on_shared_shards() {
    for shared in [true, false] {
        let mut ledger = StreamLedger::new(&options(10, 1_000), StreamMode::Stream, 1, shared);
        claim(&mut ledger, vec![job(1, 600)]);
        ledger.take_message(NOW, 64);
        let share = ledger.reserve(0, all).unwrap();
        ledger.grant(share, Vec::new(), AT);
        let look_at = ledger.wait_for_credit(0, share, NOW).unwrap();
        assert_eq!(look_at == seconds(1), shared);
        assert_eq!(ledger.check_deadlines(seconds(1)).check_credit, shared);
    }
}

#[test]
fn an_earlier_deadline_brings_the_look_forward() {
    let mut ledger = ledger(10);
    claim(&mut ledger, vec![job(1, 10)]);
    ledger.take_message(NOW, 64);
    ledger.check_deadlines(seconds(10));
    assert_eq!(ledger.next_check(), seconds(31));
    ledger.set_deadline(Token(1), seconds(12));
    assert_eq!(ledger.next_check(), seconds(13));
    assert_eq!(ledger.check_deadlines(seconds(13)).overdue.len(), 1);
}

/// Limit of unconfirmed settles: beyond it a lease keeps its credit, and none is lost.
#[test]
fn unconfirmed_settles_are_bounded_by_the_credit() {
    for jobs in [1, 2, 3, 7] {
        let mut ledger = ledger(jobs);
        for first in [0, 100] {
            let tokens = || first..first + u64::from(jobs);
            claim(&mut ledger, tokens().map(|token| job(token, 1)).collect());
            ledger.take_message(NOW, 64);
            tokens().for_each(|token| ledger.mark_settle_unknown(Token(token)));
        }
        assert_eq!(
            (ledger.in_flight_count(), ledger.free_share()),
            (jobs, None),
            "the second ones keep theirs"
        );
        assert_eq!(ledger.close(Some(NOW)).sent.len(), 2 * jobs as usize);
    }
}

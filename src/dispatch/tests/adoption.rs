//! Adoption of the leases of a worker's previous stream by its next one: which leases, and the effects for both.

use crate::dispatch::streams::adoption_queue::ADOPTION_WAIT_MAX;
use crate::domain::StreamId;
use crate::scheduler::RevokeReason;

use super::harness::{
    SOON, TestServer, TestWorker, options, patterns, pull_options, run_pending_tasks,
};
use super::*;

const PEER: &str = "10.0.0.7:40000";
/// Lease lengths used in these tests.
const LEASES: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(86_400)];

/// Way in which a stream continues another one.
#[derive(Clone, Copy, Debug)]
enum SuccessorKind {
    Name,
    Connection,
}

impl TestServer {
    /// Returns the credit in use of the stream that was opened last.
    fn last_in_flight(&self) -> u32 {
        let number =
            |worker: &super::WorkerInfo| worker.stream_id.parse::<StreamId>().unwrap().stream;
        self.dispatcher.workers().iter().max_by_key(|worker| number(worker)).unwrap().in_flight
    }

    async fn holds(&self, jobs: u32) {
        let waiting = async {
            while self.last_in_flight() != jobs {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        if tokio::time::timeout(SOON, waiting).await.is_err() {
            panic!("the stream holds {} jobs, not {jobs}", self.last_in_flight());
        }
    }
}

fn with(lease: Duration) -> StreamOptions {
    StreamOptions { lease, peer: PEER.into(), ..options(&["t"]) }
}

/// Builds the options of the next stream. With `Name`, it comes by a connection of its own.
fn next(by: SuccessorKind, former: StreamId, options: StreamOptions) -> StreamOptions {
    match by {
        SuccessorKind::Name => StreamOptions {
            continues: Some(former),
            peer: format!("10.0.0.7:{}", 50_000 + former.stream),
            ..options
        },
        SuccessorKind::Connection => options,
    }
}

/// Opens a stream, sends it this many jobs, and ends it by the server.
async fn ended(
    server: &TestServer,
    options: StreamOptions,
    jobs: usize,
) -> (StreamId, Vec<JobDelivery>) {
    let mut worker = server.open(StreamOptions { max_jobs: Some(jobs as u64), ..options });
    let sent = worker.jobs(jobs).await;
    assert!(worker.ended().await);
    (worker.id(), sent)
}

/// Opens a stream, sends it this many jobs, and breaks it.
async fn broken(
    server: &TestServer,
    options: StreamOptions,
    jobs: usize,
) -> (StreamId, Vec<JobDelivery>) {
    let mut worker = server.open(StreamOptions { max_in_flight: 100, ..options });
    (worker.id(), worker.jobs(jobs).await)
}

#[tokio::test]
async fn what_the_server_ended_comes_back_when_the_next_stream_breaks() {
    for (lease, by) in
        LEASES.into_iter().flat_map(|l| [(l, SuccessorKind::Name), (l, SuccessorKind::Connection)])
    {
        let server = TestServer::start();
        server.enqueue("t", 3).await;
        let (first, _) = ended(&server, with(lease), 3).await;
        // Over several streams, some of which were sent jobs themselves.
        let second = server.open(next(by, first, with(lease)));
        server.holds(3).await;
        server.enqueue("t", 2).await;
        let mut second = second;
        second.jobs(2).await;
        drop(second);
        server.clock.advance(4 * SECOND);
        run_pending_tasks().await;
        assert_eq!(server.stats("t").await.running, 5, "{lease:?} {by:?}");
        server.clock.advance(SECOND);
        server.eventually("t", |stats| stats.ready == 5).await;
    }
}

#[tokio::test]
async fn what_was_extended_at_a_break_comes_back_when_the_next_stream_breaks() {
    for (lease, by) in
        LEASES.into_iter().flat_map(|l| [(l, SuccessorKind::Name), (l, SuccessorKind::Connection)])
    {
        for extended_first in [true, false] {
            let server = TestServer::start();
            server.enqueue("t", 3).await;
            let (first, sent) = broken(&server, with(lease), 3).await;
            if extended_first {
                server.extend(&sent[..2]).await;
            }
            let second = server.open(next(by, first, with(lease)));
            if !extended_first {
                server.extend(&sent[..2]).await;
            }
            server.holds(2).await;
            server.clock.advance(5 * SECOND);
            // A job that is not extended may never have arrived: it comes back, and the next stream gets it.
            server.holds(3).await;
            drop(second);
            server.clock.advance(5 * SECOND);
            server.eventually("t", |stats| stats.ready == 3).await;
        }
    }
}

#[tokio::test]
async fn what_was_extended_is_adopted_also_after_the_grace() {
    for by in [SuccessorKind::Name, SuccessorKind::Connection] {
        let server = TestServer::start();
        server.enqueue("t", 1).await;
        let (first, sent) = broken(&server, with(LEASES[1]), 1).await;
        server.extend(&sent).await;
        server.clock.advance(60 * SECOND);
        run_pending_tasks().await;
        let second = server.open(next(by, first, with(LEASES[1])));
        server.holds(1).await;
        drop(second);
        server.clock.advance(5 * SECOND);
        server.eventually("t", |stats| stats.ready == 1).await;
    }
}

#[tokio::test]
async fn revocations_and_settles_reach_the_stream_that_adopted() {
    for by in [SuccessorKind::Name, SuccessorKind::Connection] {
        let server = TestServer::start();
        server.enqueue("t", 4).await;
        let (first, sent) = broken(&server, with(LEASES[1]), 4).await;
        server.extend(&sent).await;
        let mut second = server.open(next(by, first, with(LEASES[1])));
        server.holds(4).await;
        server.scheduler.producer.delete(sent[0].receipt.key.clone(), None).await.unwrap();
        let batch = second.batch().await;
        assert_eq!(batch.revocations, [(sent[0].receipt.clone(), RevokeReason::Deleted)], "{by:?}");
        assert_eq!(batch.in_flight, 3);
        server.ack(&sent[1..2]).await;
        server.holds(2).await;
        // Once more, and the receipts are still the first ones.
        let second_id = second.id();
        drop(second);
        server.extend(&sent[2..]).await;
        let mut third = server.open(next(by, second_id, with(LEASES[1])));
        server.holds(2).await;
        server.scheduler.producer.delete(sent[2].receipt.key.clone(), None).await.unwrap();
        let revoked = third.batch().await.revocations;
        assert_eq!(revoked, [(sent[2].receipt.clone(), RevokeReason::Deleted)], "{by:?}");
        server.ack(&sent[3..]).await;
        server.holds(0).await;
    }
}

#[tokio::test]
async fn adopted_leases_count_against_the_credit_also_beyond_it() {
    let server = TestServer::start();
    server.enqueue("t", 4).await;
    let (first, sent) = ended(&server, with(LEASES[1]), 4).await;
    server.enqueue("t", 2).await;
    let options = StreamOptions { max_in_flight: 2, ..with(LEASES[1]) };
    let mut second = server.open(next(SuccessorKind::Name, first, options));
    server.holds(4).await;
    server.ack(&sent[..2]).await;
    second.nothing().await;
    server.ack(&sent[2..3]).await;
    second.jobs(1).await;
    server.ack(&sent[3..]).await;
    second.jobs(1).await;
}

/// A stream waits for its first lookup only as long as that takes: [`ADOPTION_WAIT_MAX`] is for a shard that does not
/// answer. Any of many attempts shows it, also on a busy machine.
#[tokio::test]
async fn a_stream_that_continues_another_one_gets_jobs_at_once() {
    for by in [SuccessorKind::Name, SuccessorKind::Connection] {
        let mut slow = Vec::new();
        while slow.len() < 20 {
            let server = TestServer::start();
            server.enqueue("t", 1).await;
            let (first, _) = ended(&server, with(LEASES[1]), 1).await;
            server.enqueue("t", 1).await;
            let begin = tokio::time::Instant::now();
            let mut second =
                server.open(StreamOptions { max_in_flight: 2, ..next(by, first, with(LEASES[1])) });
            second.jobs(1).await;
            match begin.elapsed() {
                took if took < ADOPTION_WAIT_MAX => break,
                took => slow.push(took),
            }
        }
        assert!(slow.len() < 20, "{by:?}: {slow:?}");
    }
}

/// None of these is an error, and each gets new jobs.
#[tokio::test]
async fn other_streams_adopt_nothing() {
    let server = TestServer::start();
    server.enqueue("t", 1).await;
    let (first, _) = ended(&server, with(LEASES[1]), 1).await;
    let mut live = server.open(StreamOptions { peer: "1.1.1.1:1".into(), ..with(LEASES[1]) });
    server.enqueue("t", 1).await;
    live.jobs(1).await;
    let named = |continues| StreamOptions { peer: String::new(), continues, ..with(LEASES[1]) };
    // It may settle jobs of all topics: only its name differs.
    let identity = |name| {
        let mut identity = Identity::new(name);
        identity.grants = std::array::from_fn(|_| patterns(&["*"]));
        Some(Arc::new(identity))
    };
    let others: [(&str, StreamOptions); 8] = [
        ("another worker", StreamOptions { worker_id: "x".into(), ..named(Some(first)) }),
        ("another identity", StreamOptions { identity: identity("x"), ..named(Some(first)) }),
        (
            "another identity by the same connection",
            StreamOptions { identity: identity("x"), ..with(LEASES[1]) },
        ),
        ("a worker without a name", StreamOptions { worker_id: "".into(), ..with(LEASES[1]) }),
        ("another connection", named(None)),
        ("a stream that is open", named(Some(live.id()))),
        ("an unknown stream", named(Some(StreamId { stream: 77, ..first }))),
        ("an unknown replica's", named(Some(StreamId { owner: 77, ..first }))),
    ];
    for (who, options) in others {
        let mut other = server.open(options);
        server.enqueue("t", 1).await;
        let got = loop {
            tokio::select! {
                got = other.jobs(1) => break got,
                batch = live.batch() => server.ack(&batch.deliveries).await,
            }
            server.enqueue("t", 1).await;
        };
        run_pending_tasks().await;
        assert_eq!(server.last_in_flight(), 1, "{who}");
        server.ack(&got).await;
        drop(other);
    }
    server.clock.advance(60 * SECOND);
    run_pending_tasks().await;
    assert_eq!(
        server.stats("t").await.running,
        2,
        "the one of the first and the one of the live one"
    );
}

#[tokio::test]
async fn the_first_one_of_two_adopts_and_pulled_jobs_are_no_streams() {
    let server = TestServer::start();
    server.enqueue("t", 2).await;
    let pull = PullOptions { peer: PEER.into(), ..pull_options(&["t"], 1, SECOND) };
    let pulled = server.pull(pull).await;
    let (first, _) = ended(&server, with(LEASES[1]), 1).await;
    let second = server.open(next(SuccessorKind::Name, first, with(LEASES[1])));
    server.holds(1).await;
    let third = server.open(next(SuccessorKind::Name, first, with(LEASES[1])));
    run_pending_tasks().await;
    assert_eq!(server.last_in_flight(), 0);
    let of_pull = pulled[0].receipt.stream;
    let fourth = server.open(next(
        SuccessorKind::Name,
        StreamId { stream: of_pull, ..first },
        with(LEASES[1]),
    ));
    run_pending_tasks().await;
    assert_eq!(server.last_in_flight(), 0);
    drop((second, third, fourth));
    server.in_time("t", |stats| (stats.ready, stats.running) == (1, 1)).await;
}

/// The server notices the break later than the worker, which has extended and reopened by then.
#[tokio::test]
async fn a_stream_that_its_worker_lost_first_is_continued_when_it_breaks() {
    for lease in LEASES {
        let server = TestServer::start();
        server.enqueue("t", 2).await;
        let mut first = server.open(with(lease));
        let sent = first.jobs(2).await;
        server.extend(&sent[..1]).await;
        let second = server.open(next(SuccessorKind::Name, first.id(), with(lease)));
        run_pending_tasks().await;
        assert_eq!(server.last_in_flight(), 0, "both are open");
        server.clock.advance(10 * SECOND);
        drop(first);
        server.holds(1).await;
        server.clock.advance(5 * SECOND);
        server.holds(2).await;
        drop(second);
        server.clock.advance(5 * SECOND);
        server.eventually("t", |stats| stats.ready == 2).await;
    }
}

/// The bytes of a receipt that name its stream prove nothing, and the credit comes back all the same.
#[tokio::test]
async fn a_receipt_that_names_another_stream_frees_the_credit_of_its_own() {
    let server = TestServer::start();
    server.enqueue("t", 3).await;
    let mut worker: TestWorker = server.open(with(LEASES[1]));
    for mut delivery in worker.jobs(3).await {
        delivery.receipt.stream ^= 1 << (delivery.receipt.token.0 % 32);
        delivery.receipt.owner ^= (delivery.receipt.token.0 >> 8) as u32 & 1;
        server.ack(&[delivery]).await;
    }
    assert_eq!(server.last_in_flight(), 0);
}

/// Checks that the stream keeps two jobs of "t" while it lives, also beyond the grace of those before it, and that
/// they come back when it breaks.
async fn guards_two(server: &TestServer, stream: TestWorker) {
    server.clock.advance(6 * SECOND);
    run_pending_tasks().await;
    assert_eq!(server.stats("t").await.running, 2, "its worker lives");
    drop(stream);
    run_pending_tasks().await;
    server.clock.advance(5 * SECOND);
    server.eventually("t", |stats| stats.ready == 2).await;
}

/// The worker lost its next stream before it received its id, so it names the previous one again.
#[tokio::test]
async fn leases_of_a_stream_unknown_to_its_worker_are_adopted_again() {
    for (lease, lost) in LEASES.into_iter().flat_map(|lease| [(lease, 1), (lease, 2), (lease, 3)]) {
        let server = TestServer::start();
        server.enqueue("t", 2).await;
        let (first, sent) = broken(&server, with(lease), 2).await;
        // Each by a connection of its own.
        let naming = |n: u32| {
            let peer = format!("10.0.0.7:{}", 50_000 + n);
            StreamOptions { continues: Some(first), peer, ..with(lease) }
        };
        for n in 0..lost {
            server.clock.advance(Duration::from_millis(1));
            server.extend(&sent).await;
            let unheard = server.open(naming(n));
            server.holds(2).await;
            drop(unheard);
            run_pending_tasks().await;
        }
        server.clock.advance(Duration::from_millis(1));
        server.extend(&sent).await;
        let last = server.open(naming(lost));
        server.holds(2).await;
        guards_two(&server, last).await;
    }
}

/// Also leases that have moved over several streams; the worker received the ids of all but the last one.
#[tokio::test]
async fn leases_moved_over_several_streams_are_adopted_from_an_unknown_one() {
    for (lease, moves) in LEASES.into_iter().flat_map(|lease| [(lease, 1), (lease, 2), (lease, 5)])
    {
        let server = TestServer::start();
        server.enqueue("t", 2).await;
        let (mut named, sent) = broken(&server, with(lease), 2).await;
        let reopen = async |named: StreamId| {
            server.clock.advance(Duration::from_millis(1));
            server.extend(&sent).await;
            let stream = server.open(next(SuccessorKind::Name, named, with(lease)));
            server.holds(2).await;
            stream
        };
        for _ in 0..moves {
            named = reopen(named).await.id();
            run_pending_tasks().await;
        }
        drop(reopen(named).await);
        run_pending_tasks().await;
        let last = reopen(named).await;
        guards_two(&server, last).await;
    }
}

/// The worker extends once, and loses one stream after the other before this replica sees that the first one broke.
#[tokio::test]
async fn streams_that_are_seen_to_break_late_and_in_any_order_leave_all_to_the_last_one() {
    for (lease, order) in LEASES.into_iter().flat_map(|l| [(l, [0, 1]), (l, [1, 0])]) {
        let server = TestServer::start();
        server.enqueue("t", 2).await;
        let mut first = server.open(with(lease));
        let (id, sent) = (first.id(), first.jobs(2).await);
        server.extend(&sent).await;
        server.clock.advance(Duration::from_millis(1));
        let second = server.open(next(SuccessorKind::Name, id, with(lease)));
        server.clock.advance(Duration::from_millis(1));
        let last = server.open(next(SuccessorKind::Name, id, with(lease)));
        server.clock.advance(SECOND);
        let mut lost = [Some(first), Some(second)];
        for n in order {
            drop(lost[n].take());
            run_pending_tasks().await;
        }
        server.holds(2).await;
        guards_two(&server, last).await;
    }
}

/// Several threads of a process share a connection and a worker id.
#[tokio::test]
async fn a_stream_that_names_another_adopts_nothing_of_those_beside_it() {
    let server = TestServer::start();
    let on = |topic| StreamOptions {
        lease: LEASES[1],
        peer: PEER.into(),
        max_jobs: Some(1),
        ..options(&[topic])
    };
    let (mut a, mut b) = (server.open(on("a")), server.open(on("b")));
    server.enqueue("a", 1).await;
    server.enqueue("b", 1).await;
    a.jobs(1).await;
    let done = b.jobs(1).await;
    assert!(a.ended().await && b.ended().await);
    server.ack(&done).await;
    let next = |named, topic| StreamOptions { continues: Some(named), max_jobs: None, ..on(topic) };
    let mut next_b = server.open(next(b.id(), "b"));
    server.enqueue("b", 1).await;
    next_b.jobs(1).await;
    run_pending_tasks().await;
    assert_eq!(server.last_in_flight(), 1, "the job of the other thread is not its own");
    let next_a = server.open(next(a.id(), "a"));
    server.holds(1).await;
    drop(next_b);
    server.clock.advance(6 * SECOND);
    server.eventually("b", |stats| stats.ready == 1).await;
    assert_eq!(server.stats("a").await.running, 1, "the other thread lives");
    drop(next_a);
    run_pending_tasks().await;
    server.clock.advance(5 * SECOND);
    server.eventually("a", |stats| stats.ready == 1).await;
}

#[tokio::test]
async fn a_stream_that_was_open_beside_one_that_breaks_is_no_heir_of_it() {
    let server = TestServer::start();
    server.enqueue("t", 1).await;
    let mut breaks = server.open(with(LEASES[1]));
    let sent = breaks.jobs(1).await;
    server.clock.advance(Duration::from_millis(1));
    let beside = server.open(StreamOptions { peer: PEER.into(), ..options(&["u"]) });
    server.extend(&sent).await;
    server.clock.advance(20 * SECOND);
    // The worker cancels it without a last Extend: that returns the job.
    drop(breaks);
    run_pending_tasks().await;
    server.clock.advance(5 * SECOND);
    server.eventually("t", |stats| stats.ready == 1).await;
    drop(beside);
}

/// The store does not receive in time that the stream ended in order; its worker may go to any replica meanwhile.
#[tokio::test]
async fn leases_of_a_stream_that_ended_while_its_shard_was_unreachable_are_detached_later() {
    let server = TestServer::start();
    server.enqueue("t", 1).await;
    server.store.fail_detaches(usize::MAX);
    let (_, sent) = ended(&server, with(LEASES[1]), 1).await;
    // Longer than a replica waits during shutdown.
    tokio::time::pause();
    tokio::time::sleep(20 * SECOND).await;
    tokio::time::resume();
    server.store.fail_detaches(0);
    let detached = async {
        while server.leases_left_in_store().await > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, detached).await.expect("lease is detached in time");
    server.ack(&sent).await;
}

/// The next run of a server: streams can be named over a restart, because the store has their leases.
#[tokio::test]
async fn stream_of_a_previous_run_is_continued() {
    for in_order in [true, false] {
        let server = TestServer::start();
        server.enqueue("t", 2).await;
        let mut first = server.open(with(LEASES[1]));
        let (id, sent) = (first.id(), first.jobs(2).await);
        if in_order {
            server.dispatcher.drain();
            assert!(first.batch().await.draining);
            server.dispatcher.close().await;
        } else {
            server.dispatcher.kill();
        }
        drop(first);
        let server = server.restart();
        run_pending_tasks().await;
        server.clock.advance(Duration::from_millis(1));
        server.extend(&sent[..1]).await;
        let second = server.open(next(SuccessorKind::Name, id, with(LEASES[1])));
        let kept = if in_order { 2 } else { 1 };
        server.holds(kept).await;
        server.clock.advance(5 * SECOND);
        server.holds(2).await;
        assert_eq!(server.stats("t").await.running, 2);
        drop(second);
        server.clock.advance(5 * SECOND);
        server.eventually("t", |stats| stats.ready == 2).await;
    }
}

/// The worker dies a moment after it has extended and reopened: that Extend was for the previous stream.
#[tokio::test]
async fn an_extend_before_a_stream_was_opened_does_not_outlive_it() {
    for by in [SuccessorKind::Name, SuccessorKind::Connection] {
        let server = TestServer::start();
        server.enqueue("t", 1).await;
        let (first, sent) = broken(&server, with(LEASES[1]), 1).await;
        server.clock.advance(SECOND);
        server.extend(&sent).await;
        server.clock.advance(Duration::from_millis(1));
        let second = server.open(next(by, first, with(LEASES[1])));
        server.holds(1).await;
        server.clock.advance(Duration::from_millis(1));
        drop(second);
        run_pending_tasks().await;
        server.clock.advance(5 * SECOND);
        server.eventually("t", |stats| stats.ready == 1).await;
    }
}

/// The stream ended with the server, and the worker's next one adopts the leases that the start is about to release.
#[tokio::test]
async fn leases_adopted_from_a_previous_run_are_not_released() {
    for lease in LEASES {
        let server = TestServer::start();
        server.enqueue("t", 1).await;
        let (first, sent) = {
            let mut worker = server.open(with(lease));
            (worker.id(), worker.jobs(1).await)
        };
        server.extend(&sent).await;
        server.dispatcher.kill();
        server.clock.advance(8 * SECOND);
        let server = server.restart();
        run_pending_tasks().await;
        server.clock.advance(2 * SECOND);
        let next = server.open(next(SuccessorKind::Name, first, with(lease)));
        server.holds(1).await;
        server.clock.advance(4 * SECOND);
        run_pending_tasks().await;
        assert_eq!((server.stats("t").await.running, server.last_in_flight()), (1, 1), "{lease:?}");
        drop(next);
    }
}

/// The next stream comes by the same connection before the break of the previous one is noticed.
#[tokio::test]
async fn a_stream_that_was_opened_before_its_predecessor_was_seen_to_break_adopts_too() {
    for lease in LEASES {
        let server = TestServer::start();
        server.enqueue("t", 2).await;
        let mut first = server.open(StreamOptions { max_in_flight: 2, ..with(lease) });
        let sent = first.jobs(2).await;
        let second = server.open(with(lease));
        server.extend(&sent).await;
        drop(first);
        server.holds(2).await;
        server.clock.advance(6 * SECOND);
        run_pending_tasks().await;
        assert_eq!(server.stats("t").await.running, 2, "{lease:?}");
        drop(second);
        server.clock.advance(6 * SECOND);
        server.eventually("t", |stats| stats.ready == 2).await;
    }
}

mod fairness;
mod glob_tasks;
mod sleeping_topics;
mod topic_order;
mod weights;

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::{Clock, Skew};
use crate::dispatch::StreamOptions;
use crate::dispatch::streams::ledger::{ClaimOrigin, PullProgress, StreamMode};
use crate::dispatch::streams::stream::StreamContext;
use crate::domain::{JobId, JobKey, Payload, ShardName, Spec, Token, TopicPattern};
use crate::metrics::Metrics;
use crate::store::{LeasedJob, TopicLeases, TopicRemainder};

use super::*;

const NOW: Time = Time(1_000_000);
const AT: ClaimOrigin = ClaimOrigin { shard: 0, claimed_at: NOW, skew: Skew::NONE };

fn name(topic: &str) -> TopicName {
    TopicName::stored(topic)
}

fn options(topics: &[&str], jobs: u32, bytes: u64) -> StreamOptions {
    let pattern = |topic: &&str| match topic.strip_suffix('*') {
        Some(prefix) => TopicPattern::Prefix(prefix.into()),
        None => TopicPattern::Exact(name(topic)),
    };
    StreamOptions {
        names_lease: false,
        topics: topics.iter().map(pattern).collect(),
        topic_weights: Vec::new(),
        max_in_flight: jobs,
        max_in_flight_bytes: bytes,
        max_batch: 64,
        lease: Duration::from_secs(30),
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

fn stream(id: u32, topics: &[&str], jobs: u32) -> Arc<Stream> {
    stream_of(id, options(topics, jobs, 1 << 20), StreamMode::Stream)
}

fn stream_of(id: u32, options: StreamOptions, mode: StreamMode) -> Arc<Stream> {
    let context = context(vec![ShardName::try_new("s0").unwrap()]);
    Arc::new(Stream::new(id, context, options, mode, NOW))
}

fn context(shards: Vec<ShardName>) -> Arc<StreamContext> {
    let (clock, metrics) = (Clock::system(), Metrics::new());
    Arc::new(StreamContext { clock, metrics, owner: 1, shards, shared: false })
}

fn board(streams: &[&Arc<Stream>]) -> ClaimPlanner {
    let mut board = ClaimPlanner::new(0, Arc::new(AwakeFeeds::new(1)), Arc::default());
    streams.iter().for_each(|stream| board.update_stream(stream));
    board
}

fn job(topic: &TopicName, bytes: usize) -> LeasedJob {
    let token = Token(rand::random());
    let payload = Payload { body: vec![0; bytes].into(), ..Payload::default() };
    LeasedJob {
        key: JobKey { topic: topic.clone(), id: JobId::stored(&token.0.to_string()) },
        token,
        fence: NOW,
        deadline: NOW.plus(Duration::from_secs(30)),
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

/// Returns the claim of a plan: per topic, the streams and their numbers of jobs.
fn claimed_topics(plan: &ClaimPlan) -> Vec<(String, Vec<(u32, u32)>)> {
    let takers = |asked: &TopicClaim| {
        let mut takers: Vec<_> =
            asked.takers.iter().map(|taker| (taker.stream.id(), taker.share.jobs)).collect();
        takers.sort_unstable();
        takers
    };
    plan.topics.iter().map(|asked| (asked.topic.to_string(), takers(asked))).collect()
}

fn jobs_claimed(plan: &ClaimPlan) -> HashMap<u32, u32> {
    let mut sums = HashMap::new();
    for taker in plan.topics.iter().flat_map(|asked| &asked.takers) {
        *sums.entry(taker.stream.id()).or_default() += taker.share.jobs;
    }
    sums
}

/// Builds a result that gives each taker `jobs` jobs of `bytes` each, up to its share.
fn answer(plan: &ClaimPlan, jobs: usize, bytes: usize, rest: TopicRemainder) -> Vec<TopicLeases> {
    let claimed = |asked: &TopicClaim| TopicLeases {
        by_stream: asked
            .takers
            .iter()
            .map(|taker| {
                let n = jobs.min(taker.share.jobs as usize);
                (0..n).map(|_| job(&asked.topic, bytes)).collect()
            })
            .collect(),
        remainder: rest,
    };
    plan.topics.iter().map(claimed).collect()
}

fn apply(board: &mut ClaimPlanner, plan: ClaimPlan, jobs: usize, rest: TopicRemainder) {
    let answer = answer(&plan, jobs, 10, rest);
    assert!(board.apply(plan, answer, AT).refused.is_empty());
}

#[test]
fn the_credit_of_a_stream_is_split_over_its_topics_and_never_exceeded() {
    let one = stream(1, &["a", "b", "c"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    let shares: Vec<u32> = claimed_topics(&plan).iter().map(|(_, takers)| takers[0].1).collect();
    assert_eq!(shares, [3, 3, 2]);
    assert!(board.plan().is_none(), "all credit is claimed for");
    apply(&mut board, plan, 1, TopicRemainder::Ready);
    assert_eq!(jobs_claimed(&board.plan().unwrap())[&1], 5);
}

#[test]
fn topic_sleeps_only_without_a_wake_up_since_its_claim() {
    let one = stream(1, &["a"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    board.wake_topic(&name("a"), NOW, NOW);
    apply(&mut board, plan, 0, TopicRemainder::Empty);
    let plan = board.plan().expect("a topic that woke during its claim is claimed from again");
    apply(&mut board, plan, 0, TopicRemainder::Empty);
    assert!(board.plan().is_none());
}

#[test]
fn topic_sleeps_until_its_earliest_due_time() {
    let one = stream(1, &["a"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    apply(&mut board, plan, 0, TopicRemainder::ReadyAt(Time(9_000_000)));
    board.wake_topic(&name("a"), Time(5_000_000), NOW);
    board.wake_topic(&name("a"), Time(7_000_000), NOW);
    assert_eq!(board.next_due(), Some(Time(5_000_000)));
    board.wake_due(Time(4_999_999));
    assert!(board.plan().is_none());
    board.wake_due(Time(5_000_000));
    assert!(board.plan().is_some());
    assert_eq!(board.next_due(), None);
}

#[test]
fn stream_without_credit_is_not_claimed_for() {
    let one = stream(1, &["a"], 1);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    let found = answer(&plan, 1, 10, TopicRemainder::Ready);
    let token = found[0].by_stream[0][0].token;
    board.apply(plan, found, AT);
    assert!(board.plan().is_none());
    assert!(one.release(&[token], drop).wake_feeds, "the feed waits for it");
    assert!(!one.release(&[token], drop).wake_feeds, "once");
    board.update_stream(&one);
    assert!(board.plan().is_some());
}

#[test]
fn globs_find_known_and_new_topics() {
    let one = stream(1, &["mail.*"], 8);
    let mut board = ClaimPlanner::new(0, Arc::new(AwakeFeeds::new(1)), Arc::default());
    board.track_globs();
    board.wake_topic(&name("mail.a"), NOW, NOW);
    board.wake_topic(&name("other"), NOW, NOW);
    board.update_stream(&one);
    let plan = board.plan().unwrap();
    assert_eq!(claimed_topics(&plan), [("mail.a".into(), vec![(1, 8)])]);
    apply(&mut board, plan, 0, TopicRemainder::Empty);
    board.wake_topic(&name("mail.b"), NOW, NOW);
    assert_eq!(claimed_topics(&board.plan().unwrap())[0].0, "mail.b");
}

#[test]
fn unused_topics_are_dropped() {
    let (one, two) = (stream(1, &["mail.*"], 8), stream(2, &["mail.a"], 8));
    let mut board = ClaimPlanner::new(0, Arc::new(AwakeFeeds::new(1)), Arc::default());
    board.track_globs();
    board.update_stream(&one);
    board.update_stream(&two);
    for topic in ["mail.a", "mail.b"] {
        board.wake_topic(&name(topic), NOW, NOW);
    }
    let plan = board.plan().unwrap();
    apply(&mut board, plan, 0, TopicRemainder::Empty);
    assert_eq!(board.topics.keys().collect::<Vec<_>>(), [&name("mail.a")]);
    two.ledger().close(None);
    board.update_stream(&two);
    assert!(board.topics.is_empty() && board.due.is_empty());
}

#[test]
fn overlapping_patterns_count_once() {
    let one = stream(1, &["a.b", "a.*", "a.b.*", "c"], 8);
    assert_eq!(distinct(&one.options().topics), options(&["a.*", "c"], 1, 1).topics);
}

#[test]
fn job_larger_than_a_share_is_claimed_alone_then_waits_for_credit() {
    let one = stream_of(1, options(&["a", "b"], 8, 1_000), StreamMode::Stream);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    assert_eq!(plan.topics[0].takers[0].share.bytes, 500);
    // b gives a job of 300 bytes; a has one of 900, which did not fit.
    let mut found = answer(&plan, 0, 0, TopicRemainder::Ready);
    let place = plan.topics.iter().position(|asked| asked.topic == name("b")).unwrap();
    found[place] = TopicLeases {
        by_stream: vec![vec![job(&name("b"), 300)]],
        remainder: TopicRemainder::Empty,
    };
    let held = found[place].by_stream[0][0].token;
    board.apply(plan, found, AT);
    let plan = board.plan().unwrap();
    assert_eq!(plan.topics[0].topic, name("a"));
    assert_eq!(
        (plan.topics[0].takers[0].share.bytes, plan.topics[0].takers[0].share.oversize),
        (700, false)
    );
    apply(&mut board, plan, 0, TopicRemainder::Ready);
    assert!(board.plan().is_none(), "no topic is claimed from again before a change");
    assert!(one.release(&[held], drop).wake_feeds);
    board.update_stream(&one);
    let plan = board.plan().unwrap();
    assert!(plan.topics[0].takers[0].share.oversize, "nothing is held: it may come alone");
}

#[test]
fn topic_whose_claim_found_expired_jobs_is_claimed_again_at_once() {
    let one = stream(1, &["a"], 8);
    let mut board = board(&[&one]);
    for _ in 0..3 {
        let plan = board.plan().expect("no job was too large for a stream");
        assert_eq!(claimed_topics(&plan)[0].0, "a");
        apply(&mut board, plan, 0, TopicRemainder::Unknown);
    }
    let plan = board.plan().unwrap();
    apply(&mut board, plan, 0, TopicRemainder::Empty);
    assert!(board.plan().is_none());
}

#[test]
fn topic_that_waits_for_credit_is_claimed_again() {
    let one = stream_of(1, options(&["a", "b"], 8, 1_000), StreamMode::Stream);
    let mut board = board(&[&one]);
    let of_b = |plan: &ClaimPlan, bytes| {
        let mut found = answer(plan, 0, 0, TopicRemainder::Ready);
        let place = plan.topics.iter().position(|asked| asked.topic == name("b")).unwrap();
        let leased = vec![vec![job(&name("b"), bytes)]];
        found[place] = TopicLeases { by_stream: leased, remainder: TopicRemainder::Empty };
        (found[place].by_stream[0][0].token, found)
    };
    let plan = board.plan().unwrap();
    let (large, found) = of_b(&plan, 500);
    board.apply(plan, found, AT);
    let plan = board.plan().unwrap();
    assert_eq!(claimed_topics(&plan)[0].0, "a");
    apply(&mut board, plan, 0, TopicRemainder::Ready);
    assert!(board.plan().is_none());
    board.wake_topic(&name("b"), NOW, NOW);
    let plan = board.plan().unwrap();
    assert_eq!(plan.topics.len(), 1);
    let (_, found) = of_b(&plan, 10);
    assert!(board.apply(plan, found, AT).wake_feeds.is_empty());
    assert!(board.plan().is_none());
    assert!(one.release(&[large], drop).wake_feeds);
    board.update_stream(&one);
    assert_eq!(claimed_topics(&board.plan().unwrap())[0].0, "a");
}

#[test]
fn stream_is_notified_when_every_topic_was_claimed() {
    let pull = stream_of(1, options(&["a", "b"], 1, 1 << 20), StreamMode::Pull);
    let mut board = board(&[&pull]);
    for round in 0..2 {
        assert!(pull.ledger().pull_progress() == PullProgress::Nothing, "{round}");
        let plan = board.plan().unwrap();
        apply(&mut board, plan, 0, TopicRemainder::Empty);
    }
    assert!(pull.ledger().pull_progress() == PullProgress::Exhausted);
    assert!(board.plan().is_none());
}

#[test]
fn glob_without_topics_counts_as_claimed() {
    let pull = stream_of(1, options(&["a.*"], 1, 1 << 20), StreamMode::Pull);
    assert!(board(&[&pull]).plan().is_none());
    assert!(pull.ledger().pull_progress() == PullProgress::Exhausted);
}

#[test]
fn jobs_claimed_for_a_closed_stream_are_returned() {
    let one = stream(1, &["a"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    one.ledger().close(Some(NOW));
    let found = answer(&plan, 2, 10, TopicRemainder::Ready);
    assert_eq!(board.apply(plan, found, AT).refused.len(), 2);
    assert!(board.plan().is_none());
}

#[test]
fn a_failed_claim_gives_the_credit_back() {
    let one = stream(1, &["a"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    board.apply_failure(plan, AT);
    assert_eq!(jobs_claimed(&board.plan().unwrap())[&1], 8);
}

#[test]
fn a_forgotten_topic_is_dropped_unless_it_is_named_or_awake() {
    let streams = [stream(1, &["a*"], 9), stream(2, &["named"], 9)];
    let mut board = board(&[&streams[0], &streams[1]]).with_lossy_events(true);
    board.track_globs();
    ["a.asleep", "a.awake"].iter().for_each(|topic| board.wake_topic(&name(topic), NOW, NOW));
    while let Some(plan) = board.plan() {
        let nothing = answer(&plan, 0, 0, TopicRemainder::Empty);
        board.apply(plan, nothing, AT);
    }
    board.wake_topic(&name("a.awake"), NOW, NOW);
    // No stream subscribes to it, so no claim finds it empty.
    board.wake_topic(&name("meant.by.none"), NOW, NOW);
    let topics = ["a.asleep", "a.awake", "named", "meant.by.none"].map(name);
    assert!(topics.iter().all(|topic| board.is_tracked(topic)));
    topics.iter().for_each(|topic| board.drop_topic(topic));
    assert_eq!(topics.map(|topic| board.is_tracked(&topic)), [false, true, true, false]);
}

mod chores;
mod fairness;
mod sleepers;
mod turns;

use std::collections::HashMap;
use std::time::Duration;

use super::super::ledger::{Mode, Origin, PullProgress};
use super::super::stream::Home;
use super::super::{StreamOptions, TopicPattern};
use super::*;
use crate::clock::{Clock, Skew};
use crate::domain::{JobId, JobKey, Payload, ShardName, Spec, Token};
use crate::metrics::Metrics;
use crate::store::{Claimed, Leased, Rest};

const NOW: Time = Time(1_000_000);
const AT: Origin = Origin { shard: 0, now: NOW, skew: Skew::NONE };

fn name(topic: &str) -> TopicName {
    TopicName::stored(topic)
}

fn options(topics: &[&str], jobs: u32, bytes: u64) -> StreamOptions {
    let pattern = |topic: &&str| match topic.strip_suffix('*') {
        Some(prefix) => TopicPattern::Prefix(prefix.into()),
        None => TopicPattern::Exact(name(topic)),
    };
    StreamOptions {
        topics: topics.iter().map(pattern).collect(),
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

fn stream(id: u32, topics: &[&str], jobs: u32) -> Arc<Stream> {
    stream_of(id, options(topics, jobs, 1 << 20), Mode::Stream)
}

fn stream_of(id: u32, options: StreamOptions, mode: Mode) -> Arc<Stream> {
    let home = home(vec![ShardName::try_new("s0").unwrap()]);
    Arc::new(Stream::new(id, home, options, mode, NOW))
}

fn home(shards: Vec<ShardName>) -> Arc<Home> {
    let (clock, metrics) = (Clock::system(), Metrics::new());
    Arc::new(Home { clock, metrics, owner: 1, shards, shared: false })
}

fn board(streams: &[&Arc<Stream>]) -> Board {
    let mut board = Board::new(0, Arc::new(Awake::new(1)), Arc::default());
    streams.iter().for_each(|stream| board.hear(stream));
    board
}

fn job(topic: &TopicName, bytes: usize) -> Leased {
    let token = Token(rand::random());
    let payload = Payload { body: vec![0; bytes].into(), ..Payload::default() };
    Leased {
        key: JobKey { topic: topic.clone(), id: JobId::stored(&token.0.to_string()) },
        token,
        fence: NOW,
        deadline: NOW.plus(Duration::from_secs(30)),
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

/// What a plan asks for: per topic, who wants how many jobs.
fn asked(plan: &Plan) -> Vec<(String, Vec<(u32, u32)>)> {
    let takers = |asked: &Asked| {
        let mut takers: Vec<_> =
            asked.takers.iter().map(|taker| (taker.stream.id(), taker.share.jobs)).collect();
        takers.sort_unstable();
        takers
    };
    plan.asks.iter().map(|asked| (asked.topic.to_string(), takers(asked))).collect()
}

fn jobs_asked(plan: &Plan) -> HashMap<u32, u32> {
    let mut sums = HashMap::new();
    for taker in plan.asks.iter().flat_map(|asked| &asked.takers) {
        *sums.entry(taker.stream.id()).or_default() += taker.share.jobs;
    }
    sums
}

/// The answer that gives everybody `jobs` jobs of `bytes` each, as far as they asked.
fn answer(plan: &Plan, jobs: usize, bytes: usize, rest: Rest) -> Vec<Claimed> {
    let claimed = |asked: &Asked| Claimed {
        leased: asked
            .takers
            .iter()
            .map(|taker| {
                let n = jobs.min(taker.share.jobs as usize);
                (0..n).map(|_| job(&asked.topic, bytes)).collect()
            })
            .collect(),
        rest,
    };
    plan.asks.iter().map(claimed).collect()
}

fn apply(board: &mut Board, plan: Plan, jobs: usize, rest: Rest) {
    let answer = answer(&plan, jobs, 10, rest);
    assert!(board.apply(plan, answer, AT).refused.is_empty());
}

#[test]
fn the_credit_of_a_stream_is_split_over_its_topics_and_never_exceeded() {
    let one = stream(1, &["a", "b", "c"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    let shares: Vec<u32> = asked(&plan).iter().map(|(_, takers)| takers[0].1).collect();
    assert_eq!(shares, [3, 3, 2]);
    assert!(board.plan().is_none(), "all of it is asked for");
    apply(&mut board, plan, 1, Rest::More);
    assert_eq!(jobs_asked(&board.plan().unwrap())[&1], 5);
}

#[test]
fn a_topic_sleeps_only_if_nothing_woke_it_since_it_was_asked() {
    let one = stream(1, &["a"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    board.wake(&name("a"), NOW, NOW);
    apply(&mut board, plan, 0, Rest::Nothing);
    let plan = board.plan().expect("woken while it was asked");
    apply(&mut board, plan, 0, Rest::Nothing);
    assert!(board.plan().is_none());
}

#[test]
fn a_topic_sleeps_until_the_earliest_time_it_heard_of() {
    let one = stream(1, &["a"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    apply(&mut board, plan, 0, Rest::Until(Time(9_000_000)));
    board.wake(&name("a"), Time(5_000_000), NOW);
    board.wake(&name("a"), Time(7_000_000), NOW);
    assert_eq!(board.next_due(), Some(Time(5_000_000)));
    board.wake_due(Time(4_999_999));
    assert!(board.plan().is_none());
    board.wake_due(Time(5_000_000));
    assert!(board.plan().is_some());
    assert_eq!(board.next_due(), None);
}

#[test]
fn a_busy_stream_is_left_alone_until_it_has_credit() {
    let one = stream(1, &["a"], 1);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    let found = answer(&plan, 1, 10, Rest::More);
    let token = found[0].leased[0][0].token;
    board.apply(plan, found, AT);
    assert!(board.plan().is_none());
    assert!(one.release(&[token], drop).wake_feeds, "the feed waits for it");
    assert!(!one.release(&[token], drop).wake_feeds, "once");
    board.hear(&one);
    assert!(board.plan().is_some());
}

#[test]
fn globs_find_known_and_new_topics() {
    let one = stream(1, &["mail.*"], 8);
    let mut board = Board::new(0, Arc::new(Awake::new(1)), Arc::default());
    board.learn_globs();
    board.wake(&name("mail.a"), NOW, NOW);
    board.wake(&name("other"), NOW, NOW);
    board.hear(&one);
    let plan = board.plan().unwrap();
    assert_eq!(asked(&plan), [("mail.a".into(), vec![(1, 8)])]);
    apply(&mut board, plan, 0, Rest::Nothing);
    board.wake(&name("mail.b"), NOW, NOW);
    assert_eq!(asked(&board.plan().unwrap())[0].0, "mail.b");
}

#[test]
fn topics_of_which_nothing_is_to_be_known_are_forgotten() {
    let (one, two) = (stream(1, &["mail.*"], 8), stream(2, &["mail.a"], 8));
    let mut board = Board::new(0, Arc::new(Awake::new(1)), Arc::default());
    board.learn_globs();
    board.hear(&one);
    board.hear(&two);
    for topic in ["mail.a", "mail.b"] {
        board.wake(&name(topic), NOW, NOW);
    }
    let plan = board.plan().unwrap();
    apply(&mut board, plan, 0, Rest::Nothing);
    assert_eq!(board.topics.keys().collect::<Vec<_>>(), [&name("mail.a")]);
    two.ledger().close(None);
    board.hear(&two);
    assert!(board.topics.is_empty() && board.due.is_empty());
}

#[test]
fn overlapping_patterns_count_once() {
    let one = stream(1, &["a.b", "a.*", "a.b.*", "c"], 8);
    assert_eq!(distinct(&one.options().topics), options(&["a.*", "c"], 1, 1).topics);
}

#[test]
fn a_job_too_large_for_a_share_is_asked_for_alone_and_then_waits_for_credit() {
    let one = stream_of(1, options(&["a", "b"], 8, 1_000), Mode::Stream);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    assert_eq!(plan.asks[0].takers[0].share.bytes, 500);
    // b gives a job of 300 bytes; a has one of 900, which did not fit.
    let mut found = answer(&plan, 0, 0, Rest::More);
    let place = plan.asks.iter().position(|asked| asked.topic == name("b")).unwrap();
    found[place] = Claimed { leased: vec![vec![job(&name("b"), 300)]], rest: Rest::Nothing };
    let held = found[place].leased[0][0].token;
    board.apply(plan, found, AT);
    let plan = board.plan().unwrap();
    assert_eq!(plan.asks[0].topic, name("a"));
    assert_eq!(
        (plan.asks[0].takers[0].share.bytes, plan.asks[0].takers[0].share.oversize),
        (700, false)
    );
    apply(&mut board, plan, 0, Rest::More);
    assert!(board.plan().is_none(), "nothing is asked for again before something has changed");
    assert!(one.release(&[held], drop).wake_feeds);
    board.hear(&one);
    let plan = board.plan().unwrap();
    assert!(plan.asks[0].takers[0].share.oversize, "nothing is held: it may come alone");
}

#[test]
fn a_topic_whose_claim_was_spent_on_what_had_expired_is_asked_again_at_once() {
    let one = stream(1, &["a"], 8);
    let mut board = board(&[&one]);
    for _ in 0..3 {
        let plan = board.plan().expect("nothing was too large for anybody");
        assert_eq!(asked(&plan)[0].0, "a");
        apply(&mut board, plan, 0, Rest::Again);
    }
    let plan = board.plan().unwrap();
    apply(&mut board, plan, 0, Rest::Nothing);
    assert!(board.plan().is_none());
}

#[test]
fn a_topic_that_waits_for_room_is_asked_again_whatever_others_gave_meanwhile() {
    let one = stream_of(1, options(&["a", "b"], 8, 1_000), Mode::Stream);
    let mut board = board(&[&one]);
    let of_b = |plan: &Plan, bytes| {
        let mut found = answer(plan, 0, 0, Rest::More);
        let place = plan.asks.iter().position(|asked| asked.topic == name("b")).unwrap();
        let leased = vec![vec![job(&name("b"), bytes)]];
        found[place] = Claimed { leased, rest: Rest::Nothing };
        (found[place].leased[0][0].token, found)
    };
    let plan = board.plan().unwrap();
    let (large, found) = of_b(&plan, 500);
    board.apply(plan, found, AT);
    let plan = board.plan().unwrap();
    assert_eq!(asked(&plan)[0].0, "a");
    apply(&mut board, plan, 0, Rest::More);
    assert!(board.plan().is_none());
    board.wake(&name("b"), NOW, NOW);
    let plan = board.plan().unwrap();
    assert_eq!(plan.asks.len(), 1);
    let (_, found) = of_b(&plan, 10);
    assert!(board.apply(plan, found, AT).wake_feeds.is_empty());
    assert!(board.plan().is_none());
    assert!(one.release(&[large], drop).wake_feeds);
    board.hear(&one);
    assert_eq!(asked(&board.plan().unwrap())[0].0, "a");
}

#[test]
fn a_stream_hears_when_everything_was_asked_for() {
    let pull = stream_of(1, options(&["a", "b"], 1, 1 << 20), Mode::Pull);
    let mut board = board(&[&pull]);
    for round in 0..2 {
        assert!(pull.ledger().progress() == PullProgress::Nothing, "{round}");
        let plan = board.plan().unwrap();
        apply(&mut board, plan, 0, Rest::Nothing);
    }
    assert!(pull.ledger().progress() == PullProgress::Exhausted);
    assert!(board.plan().is_none());
}

#[test]
fn a_glob_without_topics_has_asked_for_everything() {
    let pull = stream_of(1, options(&["a.*"], 1, 1 << 20), Mode::Pull);
    assert!(board(&[&pull]).plan().is_none());
    assert!(pull.ledger().progress() == PullProgress::Exhausted);
}

#[test]
fn what_comes_for_a_closed_stream_goes_back() {
    let one = stream(1, &["a"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    one.ledger().close(Some(NOW));
    let found = answer(&plan, 2, 10, Rest::More);
    assert_eq!(board.apply(plan, found, AT).refused.len(), 2);
    assert!(board.plan().is_none());
}

#[test]
fn a_failed_claim_gives_the_credit_back() {
    let one = stream(1, &["a"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    board.fail(plan, AT);
    assert_eq!(jobs_asked(&board.plan().unwrap())[&1], 8);
}

#[test]
fn a_forgotten_topic_is_dropped_unless_it_is_named_or_awake() {
    let streams = [stream(1, &["a*"], 9), stream(2, &["named"], 9)];
    let mut board = board(&[&streams[0], &streams[1]]).lossy(true);
    board.learn_globs();
    ["a.asleep", "a.awake"].iter().for_each(|topic| board.wake(&name(topic), NOW, NOW));
    while let Some(plan) = board.plan() {
        let nothing = answer(&plan, 0, 0, Rest::Nothing);
        board.apply(plan, nothing, AT);
    }
    board.wake(&name("a.awake"), NOW, NOW);
    // No stream asks for it, so no claim finds it empty.
    board.wake(&name("meant.by.none"), NOW, NOW);
    let topics = ["a.asleep", "a.awake", "named", "meant.by.none"].map(name);
    assert!(topics.iter().all(|topic| board.knows(topic)));
    topics.iter().for_each(|topic| board.forget(topic));
    assert_eq!(topics.map(|topic| board.knows(&topic)), [false, true, true, false]);
}

//! Streams with weights: whole planners against shards with a backlog, in random order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;

const DELIVERIES: usize = 3_000;
/// Largest deviation from the share of a topic.
const OFF_MAX: f64 = 0.03;

/// Planners of one replica, their mailboxes and claims, and the streams, whose workers settle what they receive.
struct Replica {
    rng: StdRng,
    context: Arc<StreamContext>,
    boards: Vec<ClaimPlanner>,
    letters: Vec<VecDeque<Arc<Stream>>>,
    under_way: Vec<Option<ClaimPlan>>,
    streams: Vec<Worker>,
    /// Topics without ready jobs.
    dry: BTreeSet<String>,
    woken: usize,
}

struct Worker {
    stream: Arc<Stream>,
    held: VecDeque<Token>,
    /// Number of jobs that are settled at once.
    batch: usize,
    delivered: Vec<String>,
}

fn weighted(topics: &[(&str, u32)], credit: u32) -> StreamOptions {
    let names: Vec<&str> = topics.iter().map(|(topic, _)| *topic).collect();
    let base = options(&names, credit, 1 << 30);
    let weights = topics.iter().map(|(_, weight)| *weight);
    let topic_weights = base.topics.iter().cloned().zip(weights).collect();
    StreamOptions { topic_weights, ..base }
}

// === impl Replica ===

impl Replica {
    fn new(shards: usize, topics: &[&str], seed: u64) -> Replica {
        let (awake, served) = (Arc::new(AwakeFeeds::new(shards)), Arc::default());
        let board = |feed| ClaimPlanner::new(feed, Arc::clone(&awake), Arc::clone(&served));
        let mut boards: Vec<_> = (0..shards).map(board).collect();
        for board in &mut boards {
            board.track_globs();
            topics.iter().for_each(|topic| board.wake_topic(&name(topic), NOW, NOW));
        }
        let names = (0..shards).map(|n| ShardName::try_new(&format!("s{n}")).unwrap());
        Replica {
            rng: StdRng::seed_from_u64(seed),
            context: context(names.collect()),
            boards,
            letters: vec![VecDeque::new(); shards],
            under_way: (0..shards).map(|_| None).collect(),
            streams: Vec::new(),
            dry: BTreeSet::new(),
            woken: 0,
        }
    }

    fn open(&mut self, options: StreamOptions, batch: usize) {
        let (id, context) = (self.streams.len() as u32, Arc::clone(&self.context));
        let stream = Arc::new(Stream::new(id, context, options, StreamMode::Stream, NOW));
        self.wake_feeds(&stream);
        let (held, delivered) = (VecDeque::new(), Vec::new());
        self.streams.push(Worker { stream, held, batch, delivered });
    }

    fn wake_feeds(&mut self, stream: &Arc<Stream>) {
        for n in 0..self.boards.len() {
            self.post((self.woken + n) % self.boards.len(), stream);
        }
        self.woken += 1;
    }

    fn post(&mut self, board: usize, stream: &Arc<Stream>) {
        if !self.letters[board].iter().any(|other| other.id() == stream.id()) {
            self.letters[board].push_back(Arc::clone(stream));
        }
    }

    /// Gives jobs to a topic that had none, or takes them away.
    fn set_dry(&mut self, topic: &str, dry: bool) {
        if dry {
            self.dry.insert(topic.to_owned());
        } else if self.dry.remove(topic) {
            self.boards.iter_mut().for_each(|board| board.wake_topic(&name(topic), NOW, NOW));
        }
    }

    /// Runs until the stream has received `more` jobs. Returns the number of each topic.
    fn run(&mut self, stream: usize, more: usize) -> BTreeMap<String, usize> {
        let before = self.streams[stream].delivered.len();
        for step in 0.. {
            if self.streams[stream].delivered.len() >= before + more {
                break;
            }
            assert!(step < 3_000 * more, "nothing comes any more");
            self.step();
        }
        let mut counts = BTreeMap::new();
        for topic in &self.streams[stream].delivered[before..before + more] {
            *counts.entry(topic.clone()).or_default() += 1;
        }
        counts
    }

    fn step(&mut self) {
        let at = self.rng.random_range(0..self.boards.len());
        match self.rng.random_range(0..3) {
            0 if self.under_way[at].is_none() => {
                while let Some(stream) = self.letters[at].pop_front() {
                    self.boards[at].update_stream(&stream);
                }
                self.under_way[at] = self.boards[at].plan();
            }
            1 => self.answer(at),
            _ => {
                let worker = self.rng.random_range(0..self.streams.len());
                self.work(worker);
            }
        }
    }

    fn answer(&mut self, at: usize) {
        let Some(plan) = self.under_way[at].take() else { return };
        let mut found = answer(&plan, usize::MAX, 10, TopicRemainder::Ready);
        for (asked, found) in plan.topics.iter().zip(&mut found) {
            if self.dry.contains(asked.topic.as_str()) {
                found.by_stream.iter_mut().for_each(Vec::clear);
                found.remainder = TopicRemainder::Empty;
            }
        }
        let outcome = self.boards[at].apply(plan, found, ClaimOrigin { shard: at, ..AT });
        for (stream, feeds) in outcome.wake_feeds {
            feeds.into_iter().for_each(|feed| self.post(feed, &stream));
        }
    }

    fn work(&mut self, at: usize) {
        let worker = &mut self.streams[at];
        let stream = Arc::clone(&worker.stream);
        let taken = stream.take_message(NOW);
        for unsent in &taken.jobs {
            worker.held.push_back(unsent.job.token);
            worker.delivered.push(unsent.job.key.topic.to_string());
        }
        let settled = if worker.held.len() >= worker.batch { worker.batch } else { 0 };
        let done: Vec<Token> = worker.held.drain(..settled).collect();
        let freed = !done.is_empty() && stream.release(&done, drop).wake_feeds;
        if taken.wake_feeds || freed {
            self.wake_feeds(&stream);
        }
    }
}

/// Checks that the topics have been served by their weights.
fn assert_shared(context: &str, counts: &BTreeMap<String, usize>, weights: &[(&str, u32)]) {
    let (all, sum) = (counts.values().sum::<usize>(), weights.iter().map(|(_, w)| w).sum::<u32>());
    for (topic, weight) in weights {
        let fair = all as f64 * f64::from(*weight) / f64::from(sum);
        let off = (counts.get(*topic).copied().unwrap_or(0) as f64 - fair).abs() / fair;
        assert!(off <= OFF_MAX, "{context}: {topic} has not {fair} but {counts:?}");
    }
}

const WEIGHTS: [(&str, u32); 3] = [("high", 5), ("mid", 3), ("low", 2)];

#[test]
fn topics_are_served_by_their_weights_at_every_credit_and_number_of_shards() {
    let seed = rand::random();
    // Batches above the smallest share, up to all of the credit.
    for (credit, batch) in [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (17, 1), (17, 17), (97, 10)] {
        for shards in [1, 3] {
            let mut replica = Replica::new(shards, &["high", "mid", "low"], seed);
            replica.open(weighted(&WEIGHTS, credit), batch);
            let counts = replica.run(0, DELIVERIES);
            assert_shared(&format!("{seed}: {credit} {batch} {shards}"), &counts, &WEIGHTS);
        }
    }
}

#[test]
fn a_credit_larger_than_a_claim_is_shared_too() {
    for (credit, batch) in [(1_009, 1_009), (1_009, 1), (5_000, 1_000)] {
        let mut replica = Replica::new(1, &["high", "mid", "low"], 7);
        replica.open(weighted(&WEIGHTS, credit), batch);
        let counts = replica.run(0, 3 * DELIVERIES);
        assert_shared(&format!("{credit} {batch}"), &counts, &WEIGHTS);
    }
}

#[test]
fn each_stream_is_served_by_its_own_weights() {
    let topics = ["high", "low"];
    let others: [&[(&str, u32)]; 3] =
        [&[("high", 1), ("low", 9)], &[("high", 9), ("low", 1)], &[("high", 3), ("low", 2)]];
    for (shards, credit) in [(1, 1), (1, 16), (3, 3)] {
        let mut replica = Replica::new(shards, &topics, 3);
        for weights in others {
            replica.open(weighted(weights, credit), 1);
        }
        replica.open(options(&topics, credit, 1 << 30), 1);
        let mut counts = vec![replica.run(0, DELIVERIES)];
        counts.extend((1..4).map(|stream| replica.run(stream, DELIVERIES)));
        for (counts, weights) in counts.iter().zip(others) {
            assert_shared(&format!("{shards} {credit}"), counts, weights);
        }
        // Without weights the order of the topics is that of all streams, and changes by chance.
        let equal = f64::from(u32::try_from(DELIVERIES).unwrap()) / 2.0;
        assert!(counts[3].values().all(|count| (*count as f64 - equal).abs() < 0.1 * equal));
    }
}

#[test]
fn a_topic_without_jobs_leaves_its_turns_and_does_not_get_them_later() {
    for (shards, credit) in [(1, 1), (1, 20), (3, 3), (3, 40)] {
        let context = format!("{shards} {credit}");
        let mut replica = Replica::new(shards, &["high", "mid", "low"], 5);
        replica.open(weighted(&WEIGHTS, credit), 1);
        replica.set_dry("high", true);
        let counts = replica.run(0, DELIVERIES);
        assert_eq!(counts.get("high"), None, "{context}");
        assert_shared(&context, &counts, &[("mid", 3), ("low", 2)]);
        replica.set_dry("high", false);
        let counts = replica.run(0, 1_000);
        let high = counts["high"];
        assert!(high <= 500 + 2 * credit as usize, "{context}: saved-up turns: {counts:?}");
        assert!(high + 2 * credit as usize + 20 >= 500, "{context}: {counts:?}");
        assert_shared(&context, &replica.run(0, DELIVERIES), &WEIGHTS);
        // A topic that was served alone has not lost its turns either.
        replica.set_dry("mid", true);
        replica.set_dry("low", true);
        replica.run(0, DELIVERIES);
        replica.set_dry("mid", false);
        replica.set_dry("low", false);
        replica.run(0, 4 * credit as usize);
        assert_shared(&context, &replica.run(0, DELIVERIES), &WEIGHTS);
    }
}

/// A topic that has jobs from time to time saves up no turns until it has many.
#[test]
fn a_trickle_saves_no_turns() {
    let mut replica = Replica::new(1, &["high", "low"], 11);
    replica.open(weighted(&[("high", 9), ("low", 1)], 100), 100);
    for round in 0..200 {
        replica.set_dry("high", round % 2 == 0);
        replica.run(0, 100);
    }
    replica.set_dry("high", false);
    let counts = replica.run(0, 2_000);
    assert!(counts["low"] >= 150, "{counts:?}");
}

#[test]
fn each_topic_of_a_pattern_has_its_weight_and_a_narrower_pattern_its_own() {
    let names = ["a.1", "a.2", "a.3", "a.urgent", "b", "a.b.1", "a.b.2"];
    let weights = [("a.*", 2), ("a.urgent", 7), ("b", 3), ("a.b.*", 1)];
    let expected =
        [("a.1", 2), ("a.2", 2), ("a.3", 2), ("a.urgent", 7), ("b", 3), ("a.b.1", 1), ("a.b.2", 1)];
    for (shards, credit) in [(1, 1), (1, 50), (3, 2), (2, 29)] {
        let mut replica = Replica::new(shards, &names, 13);
        replica.open(weighted(&weights, credit), 1);
        let counts = replica.run(0, 2 * DELIVERIES);
        assert_shared(&format!("{shards} {credit}"), &counts, &expected);
    }
}

#[test]
fn the_only_topics_of_a_pattern_are_found_behind_many_of_another_one() {
    let light: Vec<String> = (0..2_000).map(|n| format!("light.{n}")).collect();
    let mut names: Vec<&str> = light.iter().map(String::as_str).collect();
    names.push("heavy.1");
    let mut replica = Replica::new(1, &names, 17);
    replica.open(weighted(&[("light.*", 1), ("heavy.*", 100)], 4), 1);
    // Until then the topics of the pattern are attached in pieces.
    replica.run(0, 500);
    let counts = replica.run(0, 2_100);
    let heavy = counts["heavy.1"];
    assert!((90..=110).contains(&heavy), "100 of 2,100: {heavy}");
    let most = counts.iter().filter(|(topic, _)| *topic != "heavy.1").map(|(_, n)| n).max();
    assert!(most <= Some(&3), "{most:?}");
}

#[test]
fn streams_of_few_jobs_come_to_the_topics_of_small_weights() {
    let mut counts = BTreeMap::new();
    for seed in 0..1_000 {
        let mut replica = Replica::new(1, &["high", "low"], seed);
        replica.open(weighted(&[("high", 4), ("low", 1)], 1), 1);
        for (topic, n) in replica.run(0, 1) {
            *counts.entry(topic).or_insert(0) += n;
        }
    }
    assert!((50..=350).contains(&counts["low"]), "{counts:?}");
}

/// A job that does not fit the bytes of its topic's share is claimed alone, and one that fits no credit stops no other
/// topic.
#[test]
fn a_large_job_comes_alone_and_stops_no_other_topic() {
    let base = weighted(&[("a", 9), ("b", 1)], 8);
    let one =
        stream_of(1, StreamOptions { max_in_flight_bytes: 1_000, ..base }, StreamMode::Stream);
    let mut board = board(&[&one]);
    let found = |plan: &ClaimPlan, bytes_of_b: usize| {
        let claimed = |asked: &TopicClaim| {
            let share = asked.takers[0].share;
            let is_b = asked.topic == name("b");
            let fits = is_b && (share.bytes >= bytes_of_b as u64 || share.oversize);
            let jobs = if fits { vec![job(&asked.topic, bytes_of_b)] } else { Vec::new() };
            let rest = if is_b { TopicRemainder::Ready } else { TopicRemainder::Empty };
            TopicLeases { by_stream: vec![jobs], remainder: rest }
        };
        plan.topics.iter().map(claimed).collect::<Vec<_>>()
    };
    let mut tokens = Vec::new();
    for _ in 0..10 {
        let Some(plan) = board.plan() else { break };
        let leases = found(&plan, 900);
        let jobs = leases.iter().flat_map(|found| found.by_stream.iter().flatten());
        tokens.extend(jobs.map(|job| job.token));
        board.apply(plan, leases, AT);
    }
    assert_eq!(tokens.len(), 1, "one job of 900 bytes fits 1,000");
    board.wake_topic(&name("a"), NOW, NOW);
    let plan = board.plan().expect("b waits for credit, a does not");
    assert_eq!(claimed_topics(&plan)[0].0, "a");
}

#[test]
fn streams_without_weights_have_no_state_for_them() {
    let one = stream(1, &["a", "b"], 8);
    let mut board = board(&[&one]);
    assert!(one.turns().is_none());
    board.plan().unwrap();
    assert!(board.weighted.len() == 0 && board.streams[&1].weighted.is_none());
}

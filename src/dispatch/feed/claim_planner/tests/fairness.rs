//! Topics are served in turns, with any mix of streams, pulls and globs: whole planners against shards that have
//! enough jobs of every topic, in random order.

use std::collections::VecDeque;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::*;

const SUBSCRIPTION_KINDS: [SubscriptionKind; 5] = [
    SubscriptionKind::Stream,
    SubscriptionKind::Streams,
    SubscriptionKind::Glob,
    SubscriptionKind::Pull,
    SubscriptionKind::Pulls,
];
/// Number of streams, or of pulls at a time, where there are several.
const SEVERAL: usize = 2;

/// Way in which workers subscribe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubscriptionKind {
    Stream,
    Streams,
    Glob,
    Pull,
    Pulls,
}

#[derive(Clone, Copy, Debug)]
struct FairnessCase {
    way: SubscriptionKind,
    topics: usize,
    credit: u32,
    shards: usize,
    /// True: jobs are settled when all credit is used; false: one by one.
    batches: bool,
}

/// Simulated replica: planners, their mailboxes, and streams whose workers settle the jobs that they receive.
struct SimulatedReplica {
    case: FairnessCase,
    rng: StdRng,
    context: Arc<StreamContext>,
    boards: Vec<ClaimPlanner>,
    letters: Vec<VecDeque<Arc<Stream>>>,
    under_way: Vec<Option<ClaimPlan>>,
    streams: Vec<(Arc<Stream>, VecDeque<Token>)>,
    opened: u32,
    woken: usize,
    delivered: Vec<TopicName>,
}

// === impl FairnessCase ===

impl FairnessCase {
    fn names(self) -> Vec<String> {
        (0..self.topics).map(|n| format!("t.{n}")).collect()
    }

    fn streams(self) -> usize {
        if matches!(self.way, SubscriptionKind::Streams | SubscriptionKind::Pulls) {
            SEVERAL
        } else {
            1
        }
    }

    fn mode(self) -> StreamMode {
        if matches!(self.way, SubscriptionKind::Pull | SubscriptionKind::Pulls) {
            StreamMode::Pull
        } else {
            StreamMode::Stream
        }
    }

    /// Credit of all streams together.
    fn credit(self) -> usize {
        self.credit as usize * self.streams()
    }

    /// Runs the case and checks the order of the deliveries.
    fn check(self, seed: u64) {
        let deliveries = 200 * self.credit();
        let mut replica = SimulatedReplica::new(self, seed);
        for step in 0.. {
            if replica.delivered.len() >= deliveries {
                break;
            }
            assert!(step < 1_000 * deliveries, "{seed}: {self:?}: nothing comes any more");
            replica.step();
        }
        let order = &replica.delivered[..deliveries];
        for topic in self.names() {
            let places = order.iter().enumerate().filter(|(_, name)| name.as_str() == topic);
            let places: Vec<usize> = places.map(|(place, _)| place).collect();
            // Each turn is worth the credit at most.
            let fair = deliveries / self.topics;
            let granule = self.credit();
            let off = places.len().abs_diff(fair);
            assert!(off <= (fair / 20).max(granule), "{seed}: {self:?}: {topic}: {}", places.len());
            let ends = [0].into_iter().chain(places.iter().map(|place| place + 1));
            let begins = places.iter().copied().chain([deliveries]);
            let longest = ends.zip(begins).map(|(end, begin)| begin - end).max().unwrap();
            let most = 2 * self.topics * self.credit();
            assert!(longest <= most, "{seed}: {self:?}: {topic} waits for {longest}");
        }
    }
}

// === impl SimulatedReplica ===

impl SimulatedReplica {
    fn new(case: FairnessCase, seed: u64) -> SimulatedReplica {
        let (awake, served) = (Arc::new(AwakeFeeds::new(case.shards)), Arc::default());
        let board = |feed| ClaimPlanner::new(feed, Arc::clone(&awake), Arc::clone(&served));
        let mut boards: Vec<_> = (0..case.shards).map(board).collect();
        if case.way == SubscriptionKind::Glob {
            for board in &mut boards {
                board.track_globs();
                case.names().iter().for_each(|topic| board.wake_topic(&name(topic), NOW, NOW));
            }
        }
        let shards = (0..case.shards).map(|n| ShardName::try_new(&format!("s{n}")).unwrap());
        let mut replica = SimulatedReplica {
            case,
            rng: StdRng::seed_from_u64(seed),
            context: context(shards.collect()),
            boards,
            letters: vec![VecDeque::new(); case.shards],
            under_way: (0..case.shards).map(|_| None).collect(),
            streams: Vec::new(),
            opened: 0,
            woken: 0,
            delivered: Vec::new(),
        };
        (0..case.streams()).for_each(|_| replica.open());
        replica
    }

    fn open(&mut self) {
        self.opened += 1;
        let names = self.case.names();
        let names: Vec<&str> = match self.case.way {
            SubscriptionKind::Glob => vec!["t.*"],
            _ => names.iter().map(String::as_str).collect(),
        };
        let options = options(&names, self.case.credit, 1 << 30);
        let (id, context) = (self.opened, Arc::clone(&self.context));
        let stream = Arc::new(Stream::new(id, context, options, self.case.mode(), NOW));
        self.streams.push((Arc::clone(&stream), VecDeque::new()));
        self.wake_feeds(&stream);
    }

    /// Wakes the feeds like `StreamRegistry::wake_feeds`.
    fn wake_feeds(&mut self, stream: &Arc<Stream>) {
        for n in 0..self.case.shards {
            self.post((self.woken + n) % self.case.shards, stream);
        }
        self.woken += 1;
    }

    fn post(&mut self, board: usize, stream: &Arc<Stream>) {
        if !self.letters[board].iter().any(|other| other.id() == stream.id()) {
            self.letters[board].push_back(Arc::clone(stream));
        }
    }

    /// Makes one step: a planner claims or gets a result, or a worker takes or settles a job.
    fn step(&mut self) {
        let board = self.rng.random_range(0..self.boards.len());
        match self.rng.random_range(0..3) {
            0 => self.ask(board),
            1 => self.answer(board),
            _ => {
                let stream = self.rng.random_range(0..self.streams.len());
                self.take(stream);
                self.settle(stream);
            }
        }
    }

    fn ask(&mut self, at: usize) {
        if self.under_way[at].is_none() {
            while let Some(stream) = self.letters[at].pop_front() {
                self.boards[at].update_stream(&stream);
            }
            self.under_way[at] = self.boards[at].plan();
        }
    }

    fn answer(&mut self, at: usize) {
        let Some(plan) = self.under_way[at].take() else { return };
        let found = answer(&plan, usize::MAX, 10, TopicRemainder::Ready);
        let outcome = self.boards[at].apply(plan, found, ClaimOrigin { shard: at, ..AT });
        for (stream, feeds) in outcome.wake_feeds {
            feeds.into_iter().for_each(|feed| self.post(feed, &stream));
        }
    }

    fn take(&mut self, at: usize) {
        let stream = Arc::clone(&self.streams[at].0);
        let progress = stream.ledger().pull_progress();
        let is_over =
            progress == PullProgress::All || progress == PullProgress::Some && self.rng.random();
        if stream.mode() == StreamMode::Pull && !is_over {
            return;
        }
        let taken = stream.take_message(NOW);
        for unsent in &taken.jobs {
            self.streams[at].1.push_back(unsent.job.token);
            self.delivered.push(unsent.job.key.topic.clone());
        }
        if taken.wake_feeds {
            self.wake_feeds(&stream);
        }
        if stream.mode() == StreamMode::Pull {
            // Jobs that arrived meanwhile go back; the caller settles its jobs and pulls again.
            stream.ledger().close(None);
            (0..self.case.shards).for_each(|board| self.post(board, &stream));
            self.streams.swap_remove(at);
            self.open();
        }
    }

    fn settle(&mut self, at: usize) {
        let (stream, held) = &mut self.streams[at];
        let stream = Arc::clone(stream);
        let done: Vec<Token> = match self.case.batches {
            true if held.len() == self.case.credit as usize => held.drain(..).collect(),
            true => return,
            false => held.pop_front().into_iter().collect(),
        };
        if stream.release(&done, drop).wake_feeds {
            self.wake_feeds(&stream);
        }
    }
}

#[test]
fn topics_are_served_in_turns_at_every_number_of_them() {
    let seed = rand::random();
    for way in SUBSCRIPTION_KINDS {
        for topics in [1, 2, 3, 4, 5, 6, 7, 8, 13, 16] {
            FairnessCase { way, topics, credit: 1, shards: 1, batches: false }.check(seed);
        }
    }
}

#[test]
fn topics_are_served_in_turns_at_every_credit_and_number_of_shards() {
    let seed = rand::random();
    let mut rng = StdRng::seed_from_u64(seed);
    for shards in [1, 2, 3, 4, 7, 16].into_iter().cycle().take(18) {
        let way = *SUBSCRIPTION_KINDS.choose(&mut rng).unwrap();
        // Small and large credits equally often; large ones take longer.
        let most = 1 << rng.random_range(1..=6);
        let (credit, topics) = (rng.random_range(1..=most), rng.random_range(1..=16));
        FairnessCase { way, topics, credit, shards, batches: rng.random() }.check(seed);
    }
}

/// The rest of a credit, after each topic has had one job, goes to another topic each time.
#[test]
fn topics_are_served_in_turns_where_the_credit_is_one_more_than_they_are() {
    for way in SUBSCRIPTION_KINDS {
        for (topics, shards) in [(12, 16), (12, 7), (12, 2), (5, 16), (16, 4), (2, 3), (1, 2)] {
            let credit = u32::try_from(topics).unwrap() + 1;
            FairnessCase { way, topics, credit, shards, batches: false }.check(7);
        }
    }
}

#[test]
fn pulls_of_more_topics_than_are_remembered_starve_none() {
    let mut board = board(&[]);
    let forget = |board: &mut ClaimPlanner, n: usize| {
        let turn = board.order.turn_of(&name(&n.to_string()), None);
        board.order.keep_turn(name(&n.to_string()), turn);
    };
    (0..20_000).for_each(|n| forget(&mut board, n));
    let mut served = HashMap::new();
    for n in 0..200 {
        let options = options(&[&format!("a.{n}"), &format!("b.{n}")], 1, 1 << 20);
        let pull = stream_of(n, options, StreamMode::Pull);
        board.update_stream(&pull);
        let topic = claimed_topics(&board.plan().unwrap()).remove(0).0;
        *served.entry(topic.split_once('.').unwrap().0.to_owned()).or_insert(0) += 1;
        pull.ledger().close(None);
        board.update_stream(&pull);
    }
    assert!(served.values().all(|&pulls| pulls > 50), "{served:?}");
}

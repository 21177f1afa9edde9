//! Index of sleeping topics after random operations.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::*;

const STEPS: usize = 2_000;
const TOPICS: [&str; 7] = ["a", "b", "c", "g.1", "g.2", "g.3", "h.1"];
const WANTS: [&[&str]; 5] = [&["a"], &["b", "g.*"], &["g.1", "h.*"], &["*"], &["c", "c", "g.2"]];

/// Topics that the planner lists, and topics that it should list.
fn listed(board: &mut ClaimPlanner) -> (Vec<TopicName>, Vec<TopicName>) {
    let sleeps =
        |topic: &TopicEntry| topic.status != TopicStatus::Awake && !topic.groups.is_empty();
    let all = board.topics.iter().filter(|(_, topic)| sleeps(topic));
    let should = all.map(|(name, _)| name.clone()).collect();
    let mut is = board.next_sleeping(usize::MAX);
    is.sort_unstable();
    (is, should)
}

#[test]
fn all_that_sleep_are_listed_and_nothing_else() {
    let seed = rand::random();
    let mut rng = StdRng::seed_from_u64(seed);
    for lossy in [false, true] {
        let mut board = ClaimPlanner::new(0, Arc::new(AwakeFeeds::new(1)), Arc::default())
            .with_lossy_events(lossy);
        let (mut streams, mut longest) = (Vec::<Arc<Stream>>::new(), 0);
        for step in 0..STEPS {
            let topic = name(TOPICS[rng.random_range(0..TOPICS.len())]);
            match rng.random_range(0..8) {
                0 if streams.len() < 4 => {
                    let id = u32::try_from(step).unwrap();
                    let stream = stream(id, WANTS[rng.random_range(0..WANTS.len())], 5);
                    board.update_stream(&stream);
                    streams.push(stream);
                }
                1 if !streams.is_empty() => {
                    let gone = streams.swap_remove(rng.random_range(0..streams.len()));
                    gone.ledger().close(Some(NOW));
                    board.update_stream(&gone);
                }
                2 => board.drop_topic(&topic),
                3 => board.wake_topic(&topic, NOW.plus(Duration::from_secs(9)), NOW),
                4 if step == STEPS / 2 => board.track_globs(),
                5 if step % 50 == 0 => board.wake_all(),
                6 => board.wake_topic(&topic, NOW, NOW),
                _ => {
                    if let Some(plan) = board.plan() {
                        apply(&mut board, plan, 0, TopicRemainder::Empty);
                    }
                }
            }
            let (is, should) = listed(&mut board);
            assert_eq!(is, should, "seed {seed}, step {step}");
            assert_eq!(
                board.sleeping_count(),
                board.topics.len() - board.awake_topics,
                "seed {seed}, step {step}"
            );
            longest = longest.max(is.len());
        }
        assert!(longest > 2, "seed {seed}: {longest}");
    }
}

#[test]
fn topic_stays_awake_if_events_were_lost_during_its_claim() {
    let one = stream(1, &["a"], 5);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    board.mark_events_missed();
    apply(&mut board, plan, 0, TopicRemainder::Empty);
    assert!(board.plan().is_some(), "it may have come before the job");
}

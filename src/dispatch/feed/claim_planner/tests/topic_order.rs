//! Order of the streams in a queue, the groups of a topic, and the topics of a stream.

use super::*;

#[test]
fn topics_take_turns_when_the_credit_is_smaller_than_their_number() {
    let one = stream(1, &["a", "b", "c"], 1);
    let mut board = board(&[&one]);
    let mut order = Vec::new();
    for _ in 0..6 {
        let plan = board.plan().unwrap();
        order.push(claimed_topics(&plan)[0].0.clone());
        assert_eq!(jobs_claimed(&plan)[&1], 1);
        let found = answer(&plan, 1, 10, TopicRemainder::Ready);
        let token = found[0].by_stream[0][0].token;
        board.apply(plan, found, AT);
        one.release(&[token], drop);
        board.update_stream(&one);
    }
    assert_eq!(order[..3], order[3..]);
    order.truncate(3);
    order.sort_unstable();
    assert_eq!(order, ["a", "b", "c"]);
}

#[test]
fn a_call_is_shared_by_all_hungry_streams() {
    let streams: Vec<_> = (1..=4).map(|id| stream(id, &["a"], 1_000)).collect();
    let mut board = board(&streams.iter().collect::<Vec<_>>());
    let plan = board.plan().unwrap();
    assert_eq!(claimed_topics(&plan)[0].1, [(1, 128), (2, 128), (3, 128), (4, 128)]);
}

#[test]
fn a_trickle_does_not_look_at_every_idle_stream() {
    let streams: Vec<_> = (1..=100).map(|id| stream(id, &["a"], 10)).collect();
    let mut board = board(&streams.iter().collect::<Vec<_>>());
    let plan = board.plan().unwrap();
    assert_eq!(plan.topics[0].takers.len(), 16);
    apply(&mut board, plan, 1, TopicRemainder::Ready);
    let plan = board.plan().unwrap();
    assert_eq!(plan.topics[0].takers.len(), 64, "a claim that finds more has more takers");
    apply(&mut board, plan, 0, TopicRemainder::Empty);
    assert!(board.plan().is_none());
    board.wake_topic(&name("a"), NOW, NOW);
    assert_eq!(board.plan().unwrap().topics[0].takers.len(), 16);
}

/// Applies a claim for each of these topics with one job for the first taker, after `vain` empty claims. Counts in
/// `got` the jobs of each stream.
fn trickle(board: &mut ClaimPlanner, topics: &[&str], vain: usize, got: &mut HashMap<u32, u32>) {
    for _ in 0..vain {
        topics.iter().for_each(|topic| board.wake_topic(&name(topic), NOW, NOW));
        let plan = board.plan().unwrap();
        apply(board, plan, 0, TopicRemainder::Empty);
    }
    topics.iter().for_each(|topic| board.wake_topic(&name(topic), NOW, NOW));
    let plan = board.plan().unwrap();
    assert_eq!(plan.topics.len(), topics.len());
    let mut found = answer(&plan, 0, 10, TopicRemainder::Empty);
    for (asked, found) in plan.topics.iter().zip(&mut found) {
        found.by_stream[0] = vec![job(&asked.topic, 10)];
        *got.entry(asked.takers[0].stream.id()).or_default() += 1;
    }
    board.apply(plan, found, AT);
}

#[test]
fn a_trickle_goes_to_all_streams_in_turn() {
    for (topics, vain) in [(1, 0), (1, 1), (1, 2), (2, 0), (3, 1)] {
        for count in [1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 50] {
            let topics = &["t.a", "t.b", "t.c"][..topics];
            let streams: Vec<_> = (0..count).map(|id| stream(id, &["t.*"], 1_000)).collect();
            let mut board = board(&streams.iter().collect::<Vec<_>>());
            board.track_globs();
            let mut got = HashMap::new();
            for _ in 0..6 * count {
                trickle(&mut board, topics, vain, &mut got);
            }
            let (least, most) = (got.values().min(), got.values().max());
            let each = u32::try_from(6 * topics.len()).unwrap();
            let fair = least >= Some(&(each / 2)) && most <= Some(&(2 * each));
            assert!(got.len() == streams.len() && fair, "{count}, {topics:?}, {vain}: {got:?}");
        }
    }
}

#[test]
fn a_trickle_goes_to_all_groups_in_turn() {
    let (one, other) = (stream(1, &["t.a"], 100), stream(2, &["t.*"], 100));
    let mut board = board(&[&one, &other]);
    let mut got = HashMap::new();
    for _ in 0..20 {
        trickle(&mut board, &["t.a"], 1, &mut got);
    }
    assert_eq!(got, HashMap::from([(1, 10), (2, 10)]));
}

#[test]
fn a_topic_that_is_passed_over_for_another_comes_after_it() {
    let one = stream(1, &["a", "b"], 8);
    let mut board = board(&[&one]);
    let plan = board.plan().unwrap();
    // a fills the call, so b gives nothing although it has jobs.
    let mut found = answer(&plan, 1, 10, TopicRemainder::Ready);
    found[1].by_stream[0].clear();
    board.apply(plan, found, AT);
    let plan = board.plan().unwrap();
    assert_eq!(claimed_topics(&plan).iter().map(|(topic, _)| topic).collect::<Vec<_>>(), ["b"]);
    apply(&mut board, plan, 1, TopicRemainder::Empty);
    assert_eq!(claimed_topics(&board.plan().unwrap())[0].0, "a");
}

#[test]
fn a_topic_that_is_passed_over_for_another_comes_also_when_others_emptied_that() {
    let one = stream(1, &["a", "b"], 8);
    let others: Vec<_> = (2..=100).map(|id| stream(id, &["b"], 8)).collect();
    let mut board = board(&[&one]);
    others.iter().for_each(|stream| board.update_stream(stream));
    let plan = board.plan().unwrap();
    let mut found = answer(&plan, 1, 10, TopicRemainder::Ready);
    let place = plan.topics[1].takers.iter().position(|taker| taker.stream.id() == 1).unwrap();
    found[1].by_stream[place].clear();
    board.apply(plan, found, AT);
    let plan = board.plan().unwrap();
    assert_eq!((plan.topics.len(), claimed_topics(&plan)[0].0.as_str()), (1, "b"));
    assert!(jobs_claimed(&plan).contains_key(&1), "it got nothing, so it is its turn");
    apply(&mut board, plan, 0, TopicRemainder::Empty);
    assert_eq!(claimed_topics(&board.plan().unwrap()), [("a".into(), vec![(1, 7)])]);
}

#[test]
fn stream_that_got_nothing_because_others_did_is_claimed_for_again() {
    let (one, two) = (stream(1, &["a"], 8), stream(2, &["a"], 8));
    let mut board = board(&[&one, &two]);
    let plan = board.plan().unwrap();
    let mut found = answer(&plan, 8, 10, TopicRemainder::Ready);
    found[0].by_stream[1].clear();
    board.apply(plan, found, AT);
    assert_eq!(board.plan().unwrap().topics[0].takers.len(), 1);
}

#[test]
fn lines_do_not_grow_with_those_who_left() {
    let stays = stream(1, &["a"], 8);
    let mut board = board(&[&stays]);
    for id in 2..1_000 {
        let goes = stream(id, &["a"], 8);
        board.update_stream(&goes);
        goes.ledger().close(Some(NOW));
        board.update_stream(&goes);
    }
    let group = board.groups.values().next().unwrap();
    assert!(group.queue.len() < 32, "{}", group.queue.len());
}

#[test]
fn sleeping_topics_are_checked_in_turn_where_wake_ups_can_be_lost() {
    let one = stream(1, &["a", "b", "c", "d", "g.*"], 5);
    let mut board =
        ClaimPlanner::new(0, Arc::new(AwakeFeeds::new(1)), Arc::default()).with_lossy_events(true);
    board.track_globs();
    board.wake_topic(&name("g.1"), NOW, NOW);
    board.update_stream(&one);
    assert!(board.next_sleeping(9).is_empty(), "all are awake");
    let plan = board.plan().unwrap();
    apply(&mut board, plan, 0, TopicRemainder::Empty);
    board.wake_topic(&name("b"), NOW, NOW);
    let of = |names: &[&str]| names.iter().map(|n| name(n)).collect::<Vec<_>>();
    assert_eq!(board.next_sleeping(2), of(&["a", "c"]));
    assert_eq!(board.next_sleeping(3), of(&["d", "g.1", "a"]));
    assert_eq!(board.next_sleeping(9), of(&["c", "d", "g.1", "a"]));
    assert!(board.has_sleeping());
    one.ledger().close(Some(NOW));
    board.update_stream(&one);
    assert!(!board.has_sleeping());
}

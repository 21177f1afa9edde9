//! Globs of more topics than one piece takes.

use std::collections::BTreeSet;

use super::super::glob_tasks::PIECE;
use super::*;

/// More than two pieces.
const TOPICS: usize = 2 * PIECE + PIECE / 2;

fn wide() -> ClaimPlanner {
    let mut board = ClaimPlanner::new(0, Arc::new(AwakeFeeds::new(1)), Arc::default());
    board.track_globs();
    (0..TOPICS).for_each(|n| board.wake_topic(&name(&format!("g.{n}")), NOW, NOW));
    board
}

/// Gives each taker one job. Returns the tokens of the leases.
fn give_one(board: &mut ClaimPlanner, plan: ClaimPlan, rest: TopicRemainder) -> Vec<Token> {
    let found = answer(&plan, 1, 10, rest);
    let leased = found.iter().flat_map(|found| found.by_stream.iter().flatten());
    let tokens = leased.map(|job| job.token).collect();
    assert!(board.apply(plan, found, AT).refused.is_empty());
    tokens
}

/// Lets each stream take one job after the other until there is no further plan. Returns the topics that were claimed
/// from.
fn drain(board: &mut ClaimPlanner, streams: &[&Arc<Stream>]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for _ in 0..100 * TOPICS {
        let Some(plan) = board.plan() else {
            if board.has_glob_tasks() {
                continue;
            }
            return seen;
        };
        seen.extend(plan.topics.iter().map(|asked| asked.topic.to_string()));
        let tokens = give_one(board, plan, TopicRemainder::Empty);
        for stream in streams {
            if stream.release(&tokens, drop).wake_feeds {
                board.update_stream(stream);
            }
        }
    }
    panic!("the planner does not stop making plans");
}

#[test]
fn every_topic_of_a_wide_glob_is_claimed_at_every_credit() {
    for credit in [1, 2, 7, 64, 10_000] {
        let (one, mut board) = (stream(1, &["g.*"], credit), wide());
        board.update_stream(&one);
        assert_eq!(drain(&mut board, &[&one]).len(), TOPICS, "credit {credit}");
        assert!(board.glob_tasks.is_empty());
    }
}

#[test]
fn one_that_is_busy_holds_up_no_other_and_loses_no_topic() {
    let (wide_one, other) = (stream(1, &["g.*"], 1), stream(2, &["z"], 5));
    let mut board = wide();
    board.update_stream(&wide_one);
    board.update_stream(&other);
    // When one stream has no credit left, all its topics are parked and only the other's topic is claimed from.
    let seen = drain(&mut board, &[&wide_one, &other]);
    assert_eq!(seen.len(), TOPICS + 1);
    board.wake_topic(&name("z"), NOW, NOW);
    assert_eq!(claimed_topics(&board.plan().unwrap()), [("z".into(), vec![(2, 5)])]);
}

#[test]
fn no_plan_looks_at_topics_that_no_stream_asks_for() {
    let (other, mut board) = (stream(2, &["z"], 500), wide());
    (TOPICS..10 * TOPICS).for_each(|n| board.wake_topic(&name(&format!("g.{n}")), NOW, NOW));
    board.update_stream(&other);
    // Parked topics do not count when jobs are split over topics.
    assert_eq!(claimed_topics(&board.plan().unwrap()), [("z".into(), vec![(2, 500)])]);
    assert!(!board.has_glob_tasks());
}

#[test]
fn what_is_parked_for_a_stream_that_is_gone_is_dropped_in_pieces() {
    let (one, mut board) = (stream(1, &["g.*"], 1), wide());
    board.update_stream(&one);
    one.ledger().close(Some(NOW));
    while board.has_glob_tasks() {
        assert!(board.plan().is_none());
    }
    let parked = |board: &ClaimPlanner| {
        let dropped = board.glob_tasks.iter().map(|chore| match chore {
            GlobTask::Detach(detach) => detach.parked.len(),
            _ => 0,
        });
        dropped.sum::<usize>()
            + board.groups.values().map(|group| group.parked.len()).sum::<usize>()
    };
    assert!(parked(&board) > PIECE);
    board.update_stream(&one);
    assert!(board.groups.is_empty());
    while parked(&board) > 0 {
        let before = parked(&board);
        board.run_glob_task();
        assert!((1..=PIECE).contains(&(before - parked(&board))));
    }
}

/// Blocks the stream on all topics: no next job fits its remaining bytes.
fn block(board: &mut ClaimPlanner, stream: &Arc<Stream>) {
    board.update_stream(stream);
    let mut jobs = 1;
    for _ in 0..100 * TOPICS {
        if let Some(plan) = board.plan() {
            apply(board, plan, jobs, TopicRemainder::Ready);
            jobs = 0;
        } else if !board.has_glob_tasks() {
            return;
        }
    }
    panic!("the planner does not stop working");
}

#[test]
fn a_stream_that_nothing_fits_keeps_no_other_one_from_any_topic() {
    let (one, other, mut board) = (stream(1, &["g.*"], 1_000), stream(2, &["g.*"], 1), wide());
    block(&mut board, &one);
    assert_eq!(board.streams[&1].blocked.len(), TOPICS);
    board.update_stream(&other);
    let (mut seen, mut idle) = (BTreeSet::new(), 0);
    for _ in 0..10 * TOPICS {
        let Some(plan) = board.plan() else {
            idle += 1;
            continue;
        };
        seen.extend(plan.topics.iter().map(|asked| asked.topic.to_string()));
        let tokens = give_one(&mut board, plan, TopicRemainder::Ready);
        if other.release(&tokens, drop).wake_feeds {
            board.update_stream(&other);
        }
    }
    assert_eq!(seen.len(), TOPICS);
    assert!(idle < TOPICS, "{idle} plans for nothing");
    // With no credit left of either, the planner has no more work.
    let plan = board.plan().unwrap();
    apply(&mut board, plan, 1, TopicRemainder::Ready);
    for _ in 0..TOPICS {
        assert!(board.plan().is_none());
    }
    assert!(!board.has_glob_tasks());
}

#[test]
fn new_stream_is_claimed_for_at_once_while_many_topics_are_parked() {
    let (one, mut board) = (stream(1, &["g.*"], 1), wide());
    (TOPICS..10 * TOPICS).for_each(|n| board.wake_topic(&name(&format!("g.{n}")), NOW, NOW));
    let idle = stream(3, &["nothing"], 1);
    board.update_stream(&one);
    board.update_stream(&idle);
    for n in 0..50 {
        // A topic, or a glob of two.
        let topic = if n % 2 == 0 { format!("z.{n}") } else { format!("z.{n}.*") };
        for part in ["1", "2"] {
            board.wake_topic(&name(&format!("z.{n}.{part}")), NOW, NOW);
        }
        let new = stream(10 + n as u32, &[&topic], 1);
        board.update_stream(&new);
        let mut plans = 0;
        let is_asked = |plan: &ClaimPlan| {
            plan.topics.iter().any(|asked| asked.topic.as_str().starts_with("z."))
        };
        loop {
            plans += 1;
            assert!(plans <= 4, "{n}");
            let Some(plan) = board.plan() else { continue };
            let done = is_asked(&plan);
            let tokens = give_one(&mut board, plan, TopicRemainder::Ready);
            // Its credit comes back before each plan.
            if one.release(&tokens, drop).wake_feeds {
                board.update_stream(&one);
            }
            if done {
                break;
            }
        }
        new.ledger().close(Some(NOW));
        board.update_stream(&new);
    }
}

#[test]
fn topic_claimed_alone_comes_before_topics_deferred_for_it() {
    let (one, mut board) = (stream(1, &["g.*"], 1_000), wide());
    (TOPICS..10 * TOPICS).for_each(|n| board.wake_topic(&name(&format!("g.{n}")), NOW, NOW));
    board.update_stream(&one);
    while !board.glob_tasks.is_empty() || !board.unparking.is_empty() {
        board.run_glob_task();
        board.unpark_next();
    }
    let plan = board.plan().unwrap();
    apply(&mut board, plan, 1, TopicRemainder::Ready);
    // Shares were too small for the next jobs.
    let plan = board.plan().unwrap();
    let topics: BTreeSet<_> = plan.topics.iter().map(|asked| asked.topic.clone()).collect();
    apply(&mut board, plan, 0, TopicRemainder::Ready);
    let alone = board.plan().unwrap().topics;
    assert!(alone.len() == 1 && topics.contains(&alone[0].topic), "{}", alone.len());
}

#[test]
fn a_glob_that_ends_at_once_leaves_next_to_nothing_to_do() {
    let mut board = wide();
    for pieces in 0..2 {
        let one = stream(1, &["g.*"], 1);
        board.update_stream(&one);
        (0..pieces).for_each(|_| board.run_glob_task());
        one.ledger().close(Some(NOW));
        board.update_stream(&one);
        board.wake_topic(&name(&format!("g.new{pieces}")), NOW, NOW);
        (0..=pieces).for_each(|_| board.run_glob_task());
        assert!(board.glob_tasks.is_empty());
        assert!(board.topics.values().all(|topic| topic.groups.is_empty()));
    }
}

#[test]
fn no_piece_is_long() {
    let (one, mut board) = (stream(1, &["g.*"], 1), wide());
    let grouped =
        |board: &ClaimPlanner| board.topics.values().filter(|t| !t.groups.is_empty()).count();
    board.update_stream(&one);
    assert!(grouped(&board) == 0 && board.has_glob_tasks());
    while !board.glob_tasks.is_empty() {
        let before = grouped(&board);
        board.run_glob_task();
        assert!(grouped(&board) - before <= PIECE);
    }
    assert_eq!(grouped(&board), TOPICS);
    one.ledger().close(Some(NOW));
    board.update_stream(&one);
    assert!(grouped(&board) == TOPICS && board.has_glob_tasks());
    while !board.glob_tasks.is_empty() {
        let before = grouped(&board);
        board.run_glob_task();
        assert!(before - grouped(&board) <= PIECE);
    }
    assert_eq!(grouped(&board), 0);
}

#[test]
fn a_stream_that_comes_and_goes_amid_pieces_leaves_nothing() {
    let mut board = wide();
    for id in 0..5 {
        let one = stream(id, &["g.*"], 3);
        board.update_stream(&one);
        one.ledger().close(Some(NOW));
        board.update_stream(&one);
    }
    let last = stream(9, &["g.1*"], 3);
    board.update_stream(&last);
    let expected = (0..TOPICS).filter(|n| n.to_string().starts_with('1')).count();
    assert_eq!(drain(&mut board, &[&last]).len(), expected);
    last.ledger().close(Some(NOW));
    board.update_stream(&last);
    while !board.glob_tasks.is_empty() {
        board.run_glob_task();
    }
    assert!(board.groups.is_empty());
    assert!(board.topics.values().all(|topic| topic.groups.is_empty()));
}

#[test]
fn pull_of_a_wide_glob_ends_empty_once_every_topic_was_claimed() {
    let pull = stream_of(1, options(&["g.*"], 10, 1 << 20), StreamMode::Pull);
    let mut board = wide();
    board.update_stream(&pull);
    let mut asked = 0;
    while asked < TOPICS {
        assert_eq!(pull.ledger().pull_progress(), PullProgress::Nothing, "{asked}");
        let Some(plan) = board.plan() else {
            assert!(board.has_glob_tasks());
            continue;
        };
        asked += plan.topics.len();
        apply(&mut board, plan, 0, TopicRemainder::Empty);
    }
    while !board.glob_tasks.is_empty() {
        board.run_glob_task();
    }
    assert_eq!(pull.ledger().pull_progress(), PullProgress::Exhausted);
}

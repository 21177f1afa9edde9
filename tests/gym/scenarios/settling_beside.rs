//! Acks beside each other: slow ones, many of them, answers in another order.

use ringq::pb::SettleError;
use tokio_util::sync::CancellationToken;

use super::super::answers::Answer;
use super::super::call::Method;
use super::super::handle::{Gym, secs};
use super::super::jobs::job;
use super::super::record::{Check, Log};
use super::super::scenario::{Kind, Scenario};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "slow_ack",
        is_essential: true,
        text: [
            "Two Acks of a job are not answered, past the deadline of 1 s and half of the lease.",
            "Each is repeated after its deadline; meanwhile the job is extended and other jobs are acked.",
        ],
        kind: Kind::Worker(&[("RINGQ_CALL_TIMEOUT", "1")]),
        play: |gym| Box::pin(slow_ack(gym)),
    },
    Scenario {
        name: "extend_during_ack",
        is_essential: false,
        text: [
            "The Ack of a job is not answered, and meanwhile its Extend is answered STALE.",
            "The Ack is repeated: its answer decides, and the job counts as acked.",
        ],
        kind: Kind::Worker(&[("RINGQ_CALL_TIMEOUT", "2"), ("RINGQ_LEASE", "4")]),
        play: |gym| Box::pin(extend_during_ack(gym)),
    },
    Scenario {
        name: "many_acks",
        is_essential: false,
        text: [
            "1,000 jobs without steps come at once.",
            "All are acked, in at most 200 calls: settles of a few ms share a call.",
        ],
        kind: Kind::Worker(&[
            ("RINGQ_CREDIT", "1000"),
            ("RINGQ_CONCURRENCY", "64"),
            ("RINGQ_LEASE", "10"),
        ]),
        play: |gym| Box::pin(many_acks(gym)),
    },
    Scenario {
        name: "reordered_answers",
        is_essential: false,
        text: [
            "The Ack of a second job is answered before that of the first.",
            "The second does not wait for the first; neither is repeated.",
        ],
        kind: Kind::Worker(&[]),
        play: |gym| Box::pin(reordered_answers(gym)),
    },
    Scenario {
        name: "two_topics_slow_shard",
        is_essential: false,
        text: [
            "The Ack of one job fails with UNAVAILABLE for seconds, as its shard is down.",
            "Acks of 15 jobs of another topic come within 1 s each; the first succeeds once the shard is back.",
        ],
        kind: Kind::Worker(&[("RINGQ_TOPICS", "gym.a,gym.b")]),
        play: |gym| Box::pin(two_topics_slow_shard(gym)),
    },
    Scenario {
        name: "hanging_shard",
        is_essential: false,
        text: [
            "Acks of 20 jobs are not answered, nor their repeats after the deadline of 2 s, as their shard hangs.",
            "Acks of 10 jobs of another topic come within 1 s each; the 20 succeed once the shard is back.",
        ],
        kind: Kind::Worker(&[
            ("RINGQ_TOPICS", "gym.a,gym.b"),
            ("RINGQ_CREDIT", "64"),
            ("RINGQ_CALL_TIMEOUT", "2"),
            ("RINGQ_LEASE", "10"),
        ]),
        play: |gym| Box::pin(hanging_shard(gym)),
    },
];

async fn slow_ack(gym: Gym) -> Check<()> {
    let mut unanswered = 0;
    gym.answer(Method::Ack, move |call| match call.item("a") {
        Some(_) if unanswered < 2 => {
            unanswered += 1;
            Answer::Never
        }
        _ => Answer::Normal,
    });
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a")])?;
    let acked = |log: &Log| log.with(Method::Ack, "a").first().map(|call| call.at);
    let first = gym.expect(5.0, "a is acked", acked).await?;
    source.deliver([job("b"), job("c")])?;
    gym.expect_acked(5.0, &["b", "c"]).await?;
    gym.check("b and c do not wait for the Ack of a", gym.read(|log| !log.acked("a")))?;
    gym.expect_acked(10.0, &["a"]).await?;
    let times: Vec<_> = gym.read(|log| log.with(Method::Ack, "a").iter().map(|it| it.at).collect());
    let pause = times[1].saturating_sub(first);
    let sentence = format!("the Ack is repeated after its deadline of 1 s, not after {pause:?}");
    gym.check(sentence, pause >= secs(0.8) && pause <= secs(3.5))?;
    let extended = gym.read(|log| log.items(Method::Extend, "a").len());
    gym.check("a is extended while its Ack is not through", extended > 0)?;
    gym.check("a runs once", gym.done("a") == 1)
}

async fn extend_during_ack(gym: Gym) -> Check<()> {
    let mut calls = 0;
    gym.answer(Method::Ack, move |_| {
        calls += 1;
        if calls == 1 { Answer::Never } else { Answer::Normal }
    });
    gym.answer(Method::Extend, |_| Answer::Items(vec![("a", SettleError::Stale)]));
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a").steps(1, 1_000)])?;
    let extended = |log: &Log| !log.items(Method::Extend, "a").is_empty();
    gym.expect(3.5, "a is extended while its Ack has no answer", extended).await?;
    gym.check("a is done before", gym.done("a") == 1)?;
    gym.expect_acked(3.0, &["a"]).await?;
    gym.terminate().await;
    let stopped = gym.stopped(5.0).await?;
    gym.check(
        format!("one job counts as acked: {stopped:?}"),
        (stopped.acked, stopped.lost) == (1, 0),
    )
}

async fn many_acks(gym: Gym) -> Check<()> {
    let source = gym.source().await?;
    source.info()?;
    let ids: Vec<String> = (0..1_000).map(|number| format!("j{number}")).collect();
    for batch in ids.chunks(64) {
        source.deliver(batch.iter().map(job))?;
    }
    let all = |log: &Log| log.all_acked(ids.iter().map(String::as_str));
    gym.expect(20.0, "1,000 jobs are acked", all).await?;
    let calls = gym.read(|log| log.calls(Method::Ack).len());
    gym.check(format!("1,000 acks take at most 200 calls, not {calls}"), calls <= 200)?;
    let most = gym.read(|log| log.calls(Method::Ack).iter().map(|it| it.items.len()).max());
    gym.check("an Ack has at most 1,000 items", most.unwrap_or_default() <= 1_000)?;
    let doubled = gym.read(|log| ids.iter().filter(|id| log.settles(id) != 1).count());
    gym.check(format!("each job is acked once, but not {doubled}"), doubled == 0)
}

async fn reordered_answers(gym: Gym) -> Check<()> {
    let released = CancellationToken::new();
    let event = released.clone();
    gym.answer(Method::Ack, move |call| match call.item("a") {
        Some(_) => Answer::After(event.clone()),
        None => Answer::Normal,
    });
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a")])?;
    let tried = |log: &Log| !log.items(Method::Ack, "a").is_empty();
    gym.expect(5.0, "a is acked", tried).await?;
    source.deliver([job("b")])?;
    gym.expect_acked(3.0, &["b"]).await?;
    released.cancel();
    gym.expect_acked(3.0, &["a"]).await?;
    let once = |log: &Log| log.settles("a") == 1 && log.settles("b") == 1;
    gym.holds(gym.now() + secs(1.0), "no Ack is repeated", once).await
}

async fn two_topics_slow_shard(gym: Gym) -> Check<()> {
    let back = CancellationToken::new();
    let is_back = back.clone();
    gym.answer(Method::Ack, move |call| match call.item("a") {
        Some(_) if !is_back.is_cancelled() => Answer::Items(vec![("a", SettleError::Unavailable)]),
        _ => Answer::Normal,
    });
    let source = gym.source().await?;
    source.info()?;
    source.deliver([job("a").lease(10.0)])?;
    let tried = |log: &Log| !log.items(Method::Ack, "a").is_empty();
    gym.expect(5.0, "a is acked", tried).await?;
    for number in 0..15 {
        let id = format!("b{number}");
        source.deliver([job(&id).topic("gym.b")])?;
        gym.expect_acked(1.0, &[&id]).await?;
    }
    let repeated = |log: &Log| log.items(Method::Ack, "a").len() >= 3;
    gym.expect(10.0, "the Ack of a is repeated", repeated).await?;
    back.cancel();
    gym.expect_acked(10.0, &["a"]).await?;
    gym.check("each job runs once", gym.ledger().len() == 16)
}

async fn hanging_shard(gym: Gym) -> Check<()> {
    let back = CancellationToken::new();
    let is_back = back.clone();
    gym.answer(Method::Ack, move |call| {
        let hangs = call.items.iter().any(|item| item.id.starts_with('a'));
        if hangs && !is_back.is_cancelled() { Answer::Never } else { Answer::Normal }
    });
    let source = gym.source().await?;
    source.info()?;
    let hanging: Vec<String> = (0..20).map(|number| format!("a{number}")).collect();
    // One after the other: each in a call of its own.
    for id in &hanging {
        source.deliver([job(id)])?;
        let tried = |log: &Log| !log.items(Method::Ack, id).is_empty();
        gym.expect(1.5, &format!("{id} is acked"), tried).await?;
    }
    for number in 0..10 {
        if number == 5 {
            let again = |log: &Log| hanging.iter().all(|id| log.items(Method::Ack, id).len() > 1);
            gym.expect(10.0, "the Acks without an answer are repeated", again).await?;
        }
        let id = format!("b{number}");
        source.deliver([job(&id).topic("gym.b")])?;
        gym.expect_acked(1.0, &[&id]).await?;
    }
    back.cancel();
    let all = |log: &Log| log.all_acked(hanging.iter().map(String::as_str));
    gym.expect(15.0, "the jobs of the shard are acked once it is back", all).await?;
    gym.check("each job runs once", gym.ledger().len() == hanging.len() + 10)
}

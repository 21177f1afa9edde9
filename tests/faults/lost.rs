//! Answers of claims and hints are lost on the way.

use std::time::Duration;

use crate::cluster::Shape;
use crate::harness::{eventually_in, millis};
use crate::load::Habits;
use crate::proxy::Proxy;
use crate::setting::number;
use crate::trial::Trial;

/// Lost answers in a thousand.
const ANSWERS_LOST: u32 = 100;
const HINTS_LOST: u32 = 300;
/// Longest wait for the required number of lost answers.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "make faults runs it"]
async fn claims_without_an_answer_and_hints_that_never_come() {
    let drops = number("RINGQ_DROPS", 30);
    let shape = Shape { proxied: true, ..Shape::default() };
    let lease = Duration::from_secs(5);
    let habits = Habits { lease, slow: 0.0, late: 0.0, forgotten: 0.0, ..Habits::default() };
    let Some(trial) = Trial::start("lost_answers", shape, habits).await else { return };
    let proxies = &trial.cluster.proxy;
    let lose = |answers, hints| proxies.iter().for_each(|proxy| proxy.lose(answers, hints));
    let lost = || proxies.iter().map(Proxy::answers_lost).sum::<u32>();
    lose(ANSWERS_LOST, HINTS_LOST);
    eventually_in(PATIENCE, "enough answers are lost", async || {
        trial.run(millis(20)).await;
        (lost() >= drops).then_some(())
    })
    .await;
    lose(0, 0);
    let hints: u32 = proxies.iter().map(Proxy::hints_lost).sum();
    println!("lost_answers: {} answers of claims and {hints} hints were lost", lost());
    assert!(hints > 0);
    let outcome = trial.finish().await;
    // A claim whose answer was lost was not delivered: the rig causes no duplicates.
    assert_eq!(outcome.verdict.duplicates, 0);
}

//! The life of a job as one table, as in the contract: the reference model decides by it, not by the engine.

use ringq::domain::State;

/// An event in the life of a job: a step in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Transition {
    /// A worker gets it.
    Claim,
    /// The claim reached no worker and is undone.
    Unclaim,
    /// The worker is done.
    Ack,
    /// The attempt failed and another follows.
    Retry,
    /// The attempt ends without a failure and another follows.
    Release,
    /// The attempt ends and no other follows.
    DeadLetter,
    /// The expire time passed.
    Expire,
    /// A client deletes it.
    Delete,
    /// A client moves its due time or priority.
    Reschedule,
    /// A client puts it back with fresh counters.
    Redrive,
    /// Its full topic needs the room.
    Evict,
}

impl Transition {
    /// All of them.
    pub(super) const ALL: [Transition; 11] = [
        Transition::Claim,
        Transition::Unclaim,
        Transition::Ack,
        Transition::Retry,
        Transition::Release,
        Transition::DeadLetter,
        Transition::Expire,
        Transition::Delete,
        Transition::Reschedule,
        Transition::Redrive,
        Transition::Evict,
    ];
}

/// The target of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Next {
    /// Waiting: SCHEDULED, READY or BACKOFF, by clock and failures.
    Waiting,
    /// The given state.
    State(State),
    /// No record is left.
    Forgotten,
}

/// Error: the transition cannot happen in this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rejection(pub(super) State);

/// Returns the target of a transition.
pub(super) fn next(state: State, transition: Transition) -> Result<Next, Rejection> {
    use State::{Backoff, Cancelled, Dead, Expired, Ready, Running, Scheduled, Succeeded};
    match (state, transition) {
        (Ready, Transition::Claim) => Ok(Next::State(Running)),
        (Running, Transition::Unclaim | Transition::Retry | Transition::Release) => {
            Ok(Next::Waiting)
        }
        (Running, Transition::Ack) => Ok(Next::State(Succeeded)),
        (Running, Transition::DeadLetter) => Ok(Next::State(Dead)),
        (Scheduled | Ready | Backoff, Transition::Expire | Transition::Evict) => {
            Ok(Next::State(Expired))
        }
        (Scheduled | Ready | Backoff | Running, Transition::Delete) => Ok(Next::State(Cancelled)),
        (Succeeded | Dead | Cancelled | Expired, Transition::Delete) => Ok(Next::Forgotten),
        (Scheduled | Ready | Backoff | Dead, Transition::Reschedule) => Ok(Next::Waiting),
        (Succeeded | Dead | Cancelled | Expired, Transition::Redrive) => Ok(Next::Waiting),
        (state, _) => Err(Rejection(state)),
    }
}

/// The table as text, a row per state, so that a change shows as a diff.
#[test]
fn the_table() {
    let cell = |state, transition| match next(state, transition) {
        Ok(Next::Waiting) => "wait",
        Ok(Next::Forgotten) => "gone",
        Ok(Next::State(state)) => state.name(),
        Err(_) => "-",
    };
    let rows: Vec<String> = State::ALL
        .iter()
        .map(|&state| {
            let cells: Vec<_> = Transition::ALL.iter().map(|&step| cell(state, step)).collect();
            format!("{}: {}", state.name(), cells.join(" "))
        })
        .collect();
    assert_eq!(
        rows,
        [
            "scheduled: - - - - - - expired cancelled wait - expired",
            "ready: running - - - - - expired cancelled wait - expired",
            "running: - wait succeeded wait wait dead - cancelled - - -",
            "backoff: - - - - - - expired cancelled wait - expired",
            "succeeded: - - - - - - - gone - wait -",
            "dead: - - - - - - - gone wait wait -",
            "cancelled: - - - - - - - gone - wait -",
            "expired: - - - - - - - gone - wait -",
        ]
    );
}

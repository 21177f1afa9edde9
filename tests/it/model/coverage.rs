//! The cases that a run should try: every cell of both tables, every way to end a lease.

use std::collections::BTreeSet;

use ringq::domain::conflict::ExistingJob;
use ringq::domain::{OnConflict, State};

use super::table::{Transition, next};

const POLICIES: [OnConflict; 4] =
    [OnConflict::Keep, OnConflict::Replace, OnConflict::Reschedule, OnConflict::Reject];
/// Outcomes of an ended lease, and their records as attempts.
const ENDS: [&str; 7] = [
    "Ack Succeeded",
    "Retry Failed",
    "Retry LeaseExpired",
    "Release Released",
    "DeadLetter Failed",
    "DeadLetter LeaseExpired",
    "DeadLetter Released",
];
const ANSWERS: [&str; 4] = ["repeated false", "repeated true", "NotFound", "Stale"];
/// Effects of policies.
const POLICY_EFFECTS: [&str; 5] = ["deliver", "pause", "pause until", "release", "forget"];

/// A case that a run should try.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seen {
    /// A cell of the `on_conflict` table: policy and found state, and whether the request was identical.
    Cell(String, bool),
    /// A request id that came with another job under this policy.
    OtherJob(String),
    /// A cell of the transition table: state and transition.
    Transition(State, String),
    /// An end of a lease, and whether a generation waited behind it.
    End(String, bool),
    /// A redrive of a job: whether it moves to another topic, and whether its id is taken there.
    Redrive { moves: bool, taken: bool },
    /// A purge of a job, and whether it meant the job.
    Purge(bool),
    /// The refusal of an end of a lease, or that it was a repeat.
    Answer(String),
    /// A second settle of a lease that ended before the last one: whether in the same way.
    Past(bool),
    /// A job that needs room below a limit: whether there was none, and whether expired jobs could decide.
    Room { full: bool, open: bool },
    /// A search for the oldest jobs of a topic: whether it is full.
    Oldest { full: bool },
    /// A policy of a topic, and whether it was written.
    Policy(&'static str, bool),
    /// A claim from a paused topic that has a job to give, and whether the pause ends.
    Paused { ends: bool },
}

/// Returns all cases that a long run must have tried.
pub(crate) fn wanted() -> BTreeSet<Seen> {
    let mut wanted = BTreeSet::new();
    let states = State::ALL.map(ExistingJob::Job);
    let found = states.into_iter().chain([ExistingJob::Absent, ExistingJob::RunningWithNext]);
    for found in found {
        for policy in POLICIES {
            let cell = format!("{policy:?} {found:?}");
            wanted.insert(Seen::Cell(cell.clone(), false));
            if found != ExistingJob::Absent {
                wanted.insert(Seen::Cell(cell, true));
            }
        }
    }
    wanted.extend(POLICIES.map(|policy| Seen::OtherJob(format!("{policy:?}"))));
    for (state, transition) in
        State::ALL.iter().flat_map(|s| Transition::ALL.iter().map(move |e| (*s, *e)))
    {
        if next(state, transition).is_ok() {
            wanted.insert(Seen::Transition(state, format!("{transition:?}")));
        }
    }
    for (end, waits) in ENDS.iter().flat_map(|end| [(end, false), (end, true)]) {
        wanted.insert(Seen::End((*end).to_owned(), waits));
    }
    wanted.extend(
        [(false, false), (true, false), (true, true)]
            .map(|(moves, taken)| Seen::Redrive { moves, taken }),
    );
    wanted.extend([Seen::Past(false), Seen::Past(true), Seen::Purge(false), Seen::Purge(true)]);
    for chance in [false, true] {
        wanted.extend([false, true].map(|open| Seen::Room { full: chance, open }));
        wanted.extend(POLICY_EFFECTS.map(|effect| Seen::Policy(effect, chance)));
        wanted.extend([Seen::Oldest { full: chance }, Seen::Paused { ends: chance }]);
    }
    wanted.extend(ANSWERS.map(|answer| Seen::Answer(answer.to_owned())));
    wanted
}

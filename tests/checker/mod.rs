//! Judges a history after the fact. It has no access to servers: only to calls, answers and deliveries.
//!
//! - lost: an enqueue, or an ack that enqueues, was answered OK and the job was neither acknowledged nor made a dead
//!   letter, although the rig drained the queue.
//! - after ack: a job was delivered although an earlier ack of it was answered OK. A message that was on its way to a
//!   slow reader does not count: only deliveries with the same or a higher number, or on a stream that was opened
//!   after the answer.
//! - early: a delivery before the delay had passed, counted from the *start* of the first enqueue call, or of the
//!   nack. One host, one clock: exact.
//! - outdated: its ack was answered OK under a lease that was over: there was a later lease, and no worker had
//!   acknowledged under that so far.
//! - overlap, beyond, miscounted, renumbered: see [`repeats`].
//! - after delete: a job was delivered although its deletion was answered OK before; messages in flight count as
//!   little as above.
//! - hurried, overtried, forsaken: see [`retries`]. Failures may be miscounted there, too.
//! - misfiled: a dead letter that the servers do not list, or list twice, or a listed job that is no dead letter.
//! - doubled: one job under two ids.
//! - unexpected, damaged: a job that no client enqueued, a body that is not the one sent.
//! - reused: a receipt that came twice.
//! - held back, undone: jobs that would be lost or after ack, if their shard had not died soon after it answered; see
//!   [`forgotten`]. Allowed and counted.
//! - duplicates: repeats that no nack asked for. Allowed and counted: delivery is at least once.

mod forgotten;
pub(crate) mod history;
mod life;
mod repeats;
mod retries;
mod tests;
mod verdict;

use std::collections::{HashMap, HashSet};

use forgotten::Forgotten;
use history::{Delivered, Event, Nanos};
use life::{Ack, End, How, Life, Nack};
use repeats::Repeats;

pub(crate) use verdict::Verdict;

/// Times at which servers were cut off: by then they had stopped.
#[derive(Debug, Default)]
struct Cuts {
    all: Vec<Nanos>,
    by_server: HashMap<u32, Vec<Nanos>>,
}

/// Judges a history of `jobs` jobs.
pub(crate) fn check(jobs: u32, events: &[Event]) -> Verdict {
    let mut verdict = Verdict::default();
    let (cuts, forgotten) = (Cuts::read(events), Forgotten::read(events));
    let mut lives = read_lives(jobs, events, &cuts, &forgotten);
    verdict.cuts = cuts.count();
    let mut receipts = HashSet::new();
    for event in events {
        if let Event::Delivered(delivered) = event {
            verdict.deliveries += 1;
            verdict.reused += usize::from(!receipts.insert(&delivered.receipt));
            judge(delivered, &mut lives, (&cuts, &forgotten), &mut verdict);
        }
    }
    for event in events {
        if let Event::DeadLetters { jobs } = event {
            verdict.misfiled = misfiled(&lives, jobs);
            let jobs: HashSet<u32> = jobs.iter().copied().collect();
            let settle = |(job, life): (u32, &mut Life)| life.end_as_listed(jobs.contains(&job));
            (0..).zip(&mut lives).for_each(settle);
        }
    }
    for (job, life) in (0..).zip(&lives) {
        life.judge(job, &mut verdict);
        if life.is_outdated() {
            verdict.outdated.push(job);
        }
    }
    Repeats::read(events, &cuts, &forgotten).judge(&mut verdict);
    verdict
}

/// Returns jobs whose count in that list differs from whether they are dead letters.
fn misfiled(lives: &[Life], dead: &[u32]) -> Vec<u32> {
    let mut listed: HashMap<u32, usize> = HashMap::new();
    dead.iter().for_each(|job| *listed.entry(*job).or_default() += 1);
    // The end of jobs that their shard may have held back is not known.
    let jobs = (0..).zip(lives).filter(|(_, life)| life.held_back_ends.is_empty());
    let is_wrong = |(job, life): &(u32, &Life)| {
        listed.get(job).copied().unwrap_or(0) != usize::from(life.is_dead())
    };
    let wrong = jobs.filter(is_wrong);
    wrong.map(|(job, _)| job).collect()
}

/// Reads the history once: everything but the judgement of deliveries.
fn read_lives(jobs: u32, events: &[Event], cuts: &Cuts, forgotten: &Forgotten<'_>) -> Vec<Life> {
    let mut lives = vec![Life::default(); jobs as usize];
    for event in events {
        match event {
            Event::Retried { job, policy } => lives[*job as usize].retries.follow(*policy),
            Event::Bury { job, .. } => lives[*job as usize].retries.bury(),
            Event::Failed { job, sent, at, delivery, attempt, receipt } => {
                let (life, lasts) = (&mut lives[*job as usize], !forgotten.may_be(*job, *at));
                if !lasts {
                    life.retries.forget();
                }
                if life.retries.failed(*delivery, *attempt, *sent) {
                    let (at, delivery, receipt) = (*at, *delivery, receipt.clone());
                    life.ended(End { at, delivery, receipt, how: How::GivenUp }, lasts);
                }
            }
            Event::Delete { job, .. } => lives[*job as usize].deletion.sent = true,
            Event::Deleted { job, at, was } if !forgotten.may_be(*job, *at) => {
                lives[*job as usize].deletion.answered(*at, *was);
            }
            Event::Enqueue { job, at, delay } => lives[*job as usize].asked = Some((*at, *delay)),
            Event::Enqueued { job, at, fsynced, id } => {
                let lasts = *fsynced || !forgotten.may_be(*job, *at);
                lives[*job as usize].answered(id, lasts);
            }
            Event::FollowsOn { job, after, at } => {
                let seen = lives[*after as usize].seen;
                let lasts =
                    !forgotten.may_be(*job, *at) && !forgotten.died_between(*after, seen, *at);
                lives[*job as usize].written(lasts);
            }
            Event::Delivered(delivered @ Delivered { job: Some(job), at, .. }) => {
                let lasts = !forgotten.may_be(*job, *at);
                let counts = lasts && !cuts.of_power(*at, Nanos::MAX).any(|_| true);
                lives[*job as usize].delivered(delivered, lasts, counts);
            }
            Event::Acked { job, at, delivery, receipt, .. }
            | Event::Buried { job, at, delivery, receipt } => {
                // It may be gone for another reason then.
                let found = *delivery == i32::MAX;
                let seen = lives[*job as usize].seen;
                let may_be_gone =
                    forgotten.may_be(*job, *at) || found && forgotten.died_between(*job, seen, *at);
                let lasts = !may_be_gone;
                if let Event::Acked { sent, .. } = event
                    && lasts
                {
                    let ack = Ack { delivery: *delivery, sent: *sent, at: *at };
                    lives[*job as usize].acks.push(ack);
                }
                let buried = matches!(event, Event::Buried { .. });
                let how = if buried { How::Buried } else { How::Acked };
                let (at, delivery, receipt) = (*at, *delivery, receipt.clone());
                lives[*job as usize].ended(End { at, delivery, receipt, how }, lasts);
            }
            Event::Nacked { job, sent, delivery, delay } => {
                let (delivery, sent, not_before) = (*delivery, *sent, sent + delay);
                let nack = Nack { delivery, sent, not_before };
                lives[*job as usize].nacks.push(nack);
            }
            _ => {}
        }
    }
    lives
}

/// Judges one delivery against the life of its job, in the second pass.
fn judge(
    delivered: &Delivered,
    lives: &mut [Life],
    (cuts, forgotten): (&Cuts, &Forgotten<'_>),
    verdict: &mut Verdict,
) {
    let asked = delivered.job.and_then(|job| Some((job, lives[job as usize].asked?)));
    let Some((job, (asked, delay))) = asked else {
        verdict.unexpected += 1;
        return;
    };
    let life = &mut lives[job as usize];
    if !delivered.intact {
        verdict.damaged.push(job);
    }
    let too_soon = |nack: &Nack| {
        delivered.delivery > nack.delivery && (nack.sent..nack.not_before).contains(&delivered.at)
    };
    if delivered.at < asked + delay || life.nacks.iter().any(too_soon) {
        verdict.early.push(job);
    }
    let forbids = |end: &&End| end.forbids(delivered, cuts);
    // A held-back end counts until its shard dies.
    let (still_there, undone): (Vec<_>, Vec<_>) = (life.held_back_ends.iter().filter(forbids))
        .partition(|end| forgotten.together(job, end.at, delivered.at));
    if life.end.iter().any(|end| forbids(&end)) || !still_there.is_empty() {
        verdict.after_ack.push(job);
    }
    life.undone |= !undone.is_empty();
    if life.deletion.end.as_ref().is_some_and(|end| end.forbids(delivered, cuts)) {
        verdict.after_delete.push(job);
    }
    life.retries.judge(job, delivered, verdict);
}

// === impl Cuts ===

impl Cuts {
    fn read(events: &[Event]) -> Self {
        let mut cuts = Self::default();
        for event in events {
            match event {
                Event::Cut { at } => cuts.all.push(*at),
                Event::Killed { server, at } => {
                    cuts.by_server.entry(*server).or_default().push(*at);
                }
                _ => {}
            }
        }
        cuts
    }

    /// Returns the times between two moments at which this server was cut off.
    fn of(&self, server: u32, after: Nanos, before: Nanos) -> impl Iterator<Item = Nanos> {
        let one = self.by_server.get(&server).into_iter().flatten();
        self.all.iter().chain(one).copied().filter(move |cut| after < *cut && *cut < before)
    }

    /// Returns the times between two moments at which the power was cut.
    fn of_power(&self, after: Nanos, before: Nanos) -> impl Iterator<Item = Nanos> {
        self.all.iter().copied().filter(move |cut| after < *cut && *cut < before)
    }

    fn count(&self) -> usize {
        self.all.len() + self.by_server.values().map(Vec::len).sum::<usize>()
    }
}

//! Judges a history after the fact. It knows nothing of servers: only what was asked, answered and delivered.
//!
//! - lost: an enqueue, or an ack that enqueues, was answered OK and the job was neither acknowledged
//!   nor made a dead letter, although the rig drained the queue.
//! - after ack: a job was delivered although an earlier ack of it was answered OK. A message that
//!   was on its way to a slow reader does not count: only hand-overs with the same or a higher
//!   number, or on a stream that was opened after the answer.
//! - early: a delivery before the delay had passed, counted from the *start* of the first enqueue
//!   call, or of the nack. One host, one clock: exact.
//! - outdated: its ack was answered OK under a lease that was over: a later one was handed out, and nobody had
//!   acknowledged under that so far.
//! - overlap, miscounted, renumbered: see [`repeats`].
//! - doubled: one job under two ids.
//! - unexpected, damaged: a job that nobody asked for, a body that is not the one sent.
//! - reused: a receipt that came twice.
//! - held back, undone: what would be lost or after its ack, if its shard had not died soon after it answered; see
//!   [`forgotten`]. Allowed and counted.
//! - duplicates: repeats that no nack asked for. Allowed and counted: delivery is at least once.

mod forgotten;
pub(crate) mod history;
mod repeats;
mod tests;
mod verdict;

use std::collections::{HashMap, HashSet};

use forgotten::Forgotten;
use history::{Delivered, Event, Nanos};
use repeats::Repeats;

pub(crate) use verdict::Verdict;

/// What is known of one job.
#[derive(Clone, Debug, Default)]
struct Life {
    asked: Option<(Nanos, Nanos)>,
    answered: bool,
    /// It was answered only by a shard that may have held it back.
    held_back: bool,
    id: Option<String>,
    doubled: bool,
    end: Option<End>,
    /// Others, that its shard may have held back.
    held_back_ends: Vec<End>,
    undone: bool,
    acks: Vec<Ack>,
    /// The last hand-over.
    handed_over: i32,
    nacks: Vec<Nack>,
    deliveries: usize,
    /// When the last one so far arrived.
    seen: Nanos,
    /// Those that nobody may have forgotten.
    lasting: usize,
}

/// The first ack that was answered OK, or the dead letter.
#[derive(Clone, Debug)]
struct End {
    at: Nanos,
    delivery: i32,
    receipt: String,
    buried: bool,
}

/// An ack that was answered OK and not held back, and when it was first sent.
#[derive(Clone, Debug)]
struct Ack {
    delivery: i32,
    sent: Nanos,
    at: Nanos,
}

#[derive(Clone, Debug)]
struct Nack {
    delivery: i32,
    sent: Nanos,
    not_before: Nanos,
}

/// When servers were cut off: by then they had stopped.
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
    for (job, life) in (0..).zip(&lives) {
        life.judge(job, &mut verdict);
        if life.is_outdated() {
            verdict.outdated.push(job);
        }
    }
    Repeats::read(events, &cuts, &forgotten).judge(&mut verdict);
    verdict
}

/// The first pass: everything but the judgement of deliveries.
fn read_lives(jobs: u32, events: &[Event], cuts: &Cuts, forgotten: &Forgotten<'_>) -> Vec<Life> {
    let mut lives = vec![Life::default(); jobs as usize];
    for event in events {
        match event {
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
            Event::Delivered(Delivered { job: Some(job), id, at, delivery, .. }) => {
                let lasts = !forgotten.may_be(*job, *at);
                lives[*job as usize].delivered(id, *at, lasts);
                if lasts && !cuts.of_power(*at, Nanos::MAX).any(|_| true) {
                    let life = &mut lives[*job as usize];
                    life.handed_over = life.handed_over.max(*delivery);
                }
            }
            Event::Acked { job, at, delivery, receipt, .. }
            | Event::Buried { job, at, delivery, receipt } => {
                // That it is gone may have another reason then.
                let found = *delivery == i32::MAX;
                let seen = lives[*job as usize].seen;
                let lasts = !forgotten.may_be(*job, *at)
                    && !(found && forgotten.died_between(*job, seen, *at));
                if let Event::Acked { sent, .. } = event
                    && lasts
                {
                    let ack = Ack { delivery: *delivery, sent: *sent, at: *at };
                    lives[*job as usize].acks.push(ack);
                }
                let buried = matches!(event, Event::Buried { .. });
                let (at, delivery, receipt) = (*at, *delivery, receipt.clone());
                lives[*job as usize].ended(End { at, delivery, receipt, buried }, lasts);
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

/// The second pass: one delivery against the life of its job.
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
    // What is held back is there until its shard dies.
    let (still_there, undone): (Vec<_>, Vec<_>) = (life.held_back_ends.iter().filter(forbids))
        .partition(|end| forgotten.together(job, end.at, delivered.at));
    if life.end.iter().any(|end| forbids(&end)) || !still_there.is_empty() {
        verdict.after_ack.push(job);
    }
    life.undone |= !undone.is_empty();
}

// === impl Life ===

impl Life {
    fn answered(&mut self, id: &String, lasts: bool) {
        self.written(lasts);
        self.called(id, lasts);
    }

    fn written(&mut self, lasts: bool) {
        self.answered |= lasts;
        self.held_back |= !lasts;
    }

    fn delivered(&mut self, id: &String, at: Nanos, lasts: bool) {
        self.deliveries += 1;
        self.seen = self.seen.max(at);
        self.lasting += usize::from(lasts);
        self.called(id, lasts);
    }

    /// Keeps the end that was answered first.
    fn ended(&mut self, end: End, lasts: bool) {
        if !lasts {
            self.held_back_ends.push(end);
        } else if self.end.as_ref().is_none_or(|known| end.at < known.at) {
            self.end = Some(end);
        }
    }

    /// Keeps the first id. One that is forgotten together with the ack that made it gets another name the next time.
    fn called(&mut self, id: &String, lasts: bool) {
        if lasts {
            self.doubled |= self.id.get_or_insert_with(|| id.clone()) != id;
        }
    }

    /// Whether an ack counted although a later lease was out. Once the job is acknowledged under that one, an ack
    /// under an earlier one may be told the same.
    fn is_outdated(&self) -> bool {
        let explains =
            |ack: &Ack, other: &Ack| other.delivery > ack.delivery && other.sent <= ack.at;
        let acks = self.acks.iter().filter(|ack| ack.delivery < self.handed_over);
        acks.into_iter().any(|ack| !self.acks.iter().any(|other| explains(ack, other)))
    }

    /// What can be said without looking at single deliveries.
    fn judge(&self, job: u32, verdict: &mut Verdict) {
        let end = self.end.as_ref().or(self.held_back_ends.last());
        let (ended, buried) = (end.is_some(), end.is_some_and(|end| end.buried));
        let known = self.answered || self.lasting > 0;
        let exists = known || self.held_back || self.deliveries > 0;
        verdict.enqueued += usize::from(self.answered || self.held_back);
        verdict.exist += usize::from(exists);
        verdict.doubtful += usize::from(exists && !known);
        verdict.acked += usize::from(ended && !buried);
        verdict.buried += usize::from(buried);
        verdict.undone += usize::from(self.undone);
        verdict.duplicates += self.deliveries.saturating_sub(1 + self.nacks.len());
        if !ended {
            match self.answered {
                true => verdict.lost.push(job),
                false if self.held_back => verdict.held_back.push(job),
                false => {}
            }
        }
        if self.doubled {
            verdict.doubled.push(job);
        }
    }
}

// === impl End ===

impl End {
    /// Whether this delivery must not be: it was sent after the ack was answered. One that is only
    /// read later was sent before: by its number, or because its stream belongs to a server that was
    /// cut off before the ack, so that what it had sent lay in the reader's socket since then.
    fn forbids(&self, delivered: &Delivered, cuts: &Cuts) -> bool {
        let handed_over_later =
            delivered.delivery >= self.delivery || delivered.stream_since > self.at;
        let left_over = cuts.of(delivered.server, delivered.stream_since, self.at).next().is_some();
        delivered.at > self.at
            && handed_over_later
            && !left_over
            && delivered.receipt != self.receipt
    }
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

    /// When this server was cut off between two moments.
    fn of(&self, server: u32, after: Nanos, before: Nanos) -> impl Iterator<Item = Nanos> {
        let one = self.by_server.get(&server).into_iter().flatten();
        self.all.iter().chain(one).copied().filter(move |cut| after < *cut && *cut < before)
    }

    /// When the power was cut between two moments.
    fn of_power(&self, after: Nanos, before: Nanos) -> impl Iterator<Item = Nanos> {
        self.all.iter().copied().filter(move |cut| after < *cut && *cut < before)
    }

    fn count(&self) -> usize {
        self.all.len() + self.by_server.values().map(Vec::len).sum::<usize>()
    }
}

//! Judges a history after the fact; shared by the targets `durability` and `faults`. It knows nothing
//! of servers: only what was asked, answered and delivered.
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
//! - duplicates: repeats that no nack asked for. Allowed and counted: delivery is at least once.

pub(crate) mod history;
mod repeats;
mod tests;
mod verdict;

use std::collections::{HashMap, HashSet};

use history::{Delivered, Event, Nanos};
use repeats::Repeats;

pub(crate) use verdict::Verdict;

/// What is known of one job.
#[derive(Clone, Debug, Default)]
struct Life {
    asked: Option<(Nanos, Nanos)>,
    answered: bool,
    id: Option<String>,
    doubled: bool,
    end: Option<End>,
    acks: Vec<Ack>,
    /// The last hand-over.
    handed_over: i32,
    nacks: Vec<Nack>,
    deliveries: usize,
}

/// The first ack that was answered OK, or the dead letter.
#[derive(Clone, Debug)]
struct End {
    at: Nanos,
    delivery: i32,
    receipt: String,
    buried: bool,
}

/// An ack that was answered OK, and when it was first sent.
#[derive(Clone, Debug)]
struct Ack {
    delivery: i32,
    sent: Nanos,
    at: Nanos,
}

#[derive(Clone, Debug)]
struct Nack {
    delivery: i32,
    not_before: Nanos,
}

/// When servers were cut off: by then they had stopped.
#[derive(Debug, Default)]
struct Cuts {
    all: Vec<Nanos>,
    by_server: HashMap<u32, Vec<Nanos>>,
}

/// Judges a history of `jobs` jobs. With `only_fsynced`, only enqueues that were answered FSYNCED
/// are promises: a power cut may take the others.
pub(crate) fn check(jobs: u32, events: &[Event], only_fsynced: bool) -> Verdict {
    let mut verdict = Verdict::default();
    let lives = read_lives(jobs, events, only_fsynced);
    let cuts = Cuts::read(events);
    verdict.cuts = cuts.count();
    let mut receipts = HashSet::new();
    for event in events {
        if let Event::Delivered(delivered) = event {
            verdict.deliveries += 1;
            verdict.reused += usize::from(!receipts.insert(&delivered.receipt));
            judge(delivered, &lives, &cuts, &mut verdict);
        }
    }
    for (job, life) in (0..).zip(&lives) {
        life.judge(job, &mut verdict);
        // A power cut may take an ack with it.
        if !only_fsynced && life.is_outdated() {
            verdict.outdated.push(job);
        }
    }
    Repeats::read(events, &cuts, only_fsynced).judge(&mut verdict);
    verdict
}

/// The first pass: everything but the judgement of deliveries.
fn read_lives(jobs: u32, events: &[Event], only_fsynced: bool) -> Vec<Life> {
    let mut lives = vec![Life::default(); jobs as usize];
    for event in events {
        match event {
            Event::Enqueue { job, at, delay } => lives[*job as usize].asked = Some((*at, *delay)),
            Event::Enqueued { job, fsynced, id, .. } => {
                lives[*job as usize].answered |= *fsynced || !only_fsynced;
                lives[*job as usize].called(id);
            }
            // What an ack has written is as safe as the ack, which promises nothing across a power cut.
            Event::FollowsOn { job, .. } => lives[*job as usize].answered |= !only_fsynced,
            Event::Delivered(Delivered { job: Some(job), id, delivery, .. }) => {
                let life = &mut lives[*job as usize];
                life.handed_over = life.handed_over.max(*delivery);
                lives[*job as usize].deliveries += 1;
                lives[*job as usize].called(id);
            }
            Event::Acked { job, at, delivery, receipt, .. }
            | Event::Buried { job, at, delivery, receipt } => {
                if let Event::Acked { sent, .. } = event {
                    let ack = Ack { delivery: *delivery, sent: *sent, at: *at };
                    lives[*job as usize].acks.push(ack);
                }
                let buried = matches!(event, Event::Buried { .. });
                let (at, delivery, receipt) = (*at, *delivery, receipt.clone());
                lives[*job as usize].ended(End { at, delivery, receipt, buried });
            }
            Event::Nacked { job, sent, delivery, delay } => {
                let nack = Nack { delivery: *delivery, not_before: sent + delay };
                lives[*job as usize].nacks.push(nack);
            }
            _ => {}
        }
    }
    lives
}

/// The second pass: one delivery against the life of its job.
fn judge(delivered: &Delivered, lives: &[Life], cuts: &Cuts, verdict: &mut Verdict) {
    let life = delivered.job.map(|job| (job, &lives[job as usize]));
    let Some((job, life, (asked, delay))) = life.and_then(|(j, l)| Some((j, l, l.asked?))) else {
        verdict.unexpected += 1;
        return;
    };
    if !delivered.intact {
        verdict.damaged.push(job);
    }
    let too_soon =
        |nack: &Nack| delivered.delivery > nack.delivery && delivered.at < nack.not_before;
    if delivered.at < asked + delay || life.nacks.iter().any(too_soon) {
        verdict.early.push(job);
    }
    if life.end.as_ref().is_some_and(|end| end.forbids(delivered, cuts)) {
        verdict.after_ack.push(job);
    }
}

// === impl Life ===

impl Life {
    /// Keeps the end that was answered first.
    fn ended(&mut self, end: End) {
        if self.end.as_ref().is_none_or(|known| end.at < known.at) {
            self.end = Some(end);
        }
    }

    /// Keeps the first id.
    fn called(&mut self, id: &String) {
        self.doubled |= self.id.get_or_insert_with(|| id.clone()) != id;
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
        let buried = self.end.as_ref().is_some_and(|end| end.buried);
        verdict.enqueued += usize::from(self.answered);
        verdict.exist += usize::from(self.answered || self.deliveries > 0);
        verdict.acked += usize::from(self.end.is_some() && !buried);
        verdict.buried += usize::from(buried);
        verdict.duplicates += self.deliveries.saturating_sub(1 + self.nacks.len());
        if self.answered && self.end.is_none() {
            verdict.lost.push(job);
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

    fn count(&self) -> usize {
        self.all.len() + self.by_server.values().map(Vec::len).sum::<usize>()
    }
}

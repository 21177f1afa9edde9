//! Judges a history after the fact; shared by the targets `durability` and `faults`. It knows nothing of servers: only what was asked, answered and
//! delivered.
//!
//! - lost: an enqueue was answered OK and the job was never acknowledged, although the rig drained
//!   the queue.
//! - after ack: a job was delivered although an earlier ack of it was answered OK. A message that
//!   was on its way to a slow reader does not count: only hand-overs with the same or a higher
//!   number, or on a stream that was opened after the answer.
//! - early: a delivery before the delay had passed, counted from the *start* of the first enqueue
//!   call, or of the nack. One host, one clock: exact.
//! - unexpected, damaged: a job that nobody asked for, a body that is not the one sent.
//! - reused: a receipt that came twice.
//! - duplicates: repeats that no nack asked for. Allowed and counted: delivery is at least once.

pub(crate) mod history;
mod tests;

use std::collections::HashSet;
use std::fmt;

use history::{Delivered, Event, Nanos};

/// What the checker found. All of it must be empty but the counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) enqueued: usize,
    pub(crate) acked: usize,
    pub(crate) deliveries: usize,
    pub(crate) duplicates: usize,
    pub(crate) cuts: usize,
    pub(crate) lost: Vec<u32>,
    pub(crate) after_ack: Vec<u32>,
    pub(crate) early: Vec<u32>,
    pub(crate) damaged: Vec<u32>,
    pub(crate) unexpected: usize,
    pub(crate) reused: usize,
}

/// What is known of one job.
#[derive(Clone, Debug, Default)]
struct Life {
    asked: Option<(Nanos, Nanos)>,
    answered: bool,
    ack: Option<Ack>,
    nacks: Vec<Nack>,
    deliveries: usize,
}

/// The first ack that was answered OK.
#[derive(Clone, Debug)]
struct Ack {
    at: Nanos,
    delivery: i32,
    receipt: String,
}

#[derive(Clone, Debug)]
struct Nack {
    delivery: i32,
    not_before: Nanos,
}

/// Judges a history of `jobs` jobs. With `only_fsynced`, only enqueues that were answered FSYNCED
/// are promises: a power cut may take the others.
pub(crate) fn check(jobs: u32, events: &[Event], only_fsynced: bool) -> Verdict {
    let mut verdict = Verdict::default();
    let lives = read_lives(jobs, events, only_fsynced, &mut verdict);
    let cuts: Vec<Nanos> = events.iter().filter_map(Event::cut).collect();
    let mut receipts = HashSet::new();
    for event in events {
        if let Event::Delivered(delivered) = event {
            verdict.deliveries += 1;
            verdict.reused += usize::from(!receipts.insert(&delivered.receipt));
            judge(delivered, &lives, &cuts, &mut verdict);
        }
    }
    for (job, life) in (0..).zip(&lives) {
        verdict.enqueued += usize::from(life.answered);
        verdict.acked += usize::from(life.ack.is_some());
        verdict.duplicates += life.deliveries.saturating_sub(1 + life.nacks.len());
        if life.answered && life.ack.is_none() {
            verdict.lost.push(job);
        }
    }
    verdict
}

/// The first pass: everything but the judgement of deliveries.
fn read_lives(jobs: u32, events: &[Event], only_fsynced: bool, verdict: &mut Verdict) -> Vec<Life> {
    let mut lives = vec![Life::default(); jobs as usize];
    for event in events {
        match event {
            Event::Enqueue { job, at, delay } => lives[*job as usize].asked = Some((*at, *delay)),
            Event::Enqueued { job, fsynced, .. } => {
                lives[*job as usize].answered |= *fsynced || !only_fsynced;
            }
            Event::Delivered(Delivered { job: Some(job), .. }) => {
                lives[*job as usize].deliveries += 1;
            }
            Event::Acked { job, at, delivery, receipt } => {
                let ack = Ack { at: *at, delivery: *delivery, receipt: receipt.clone() };
                lives[*job as usize].acked(ack);
            }
            Event::Nacked { job, sent, delivery, delay } => {
                let nack = Nack { delivery: *delivery, not_before: sent + delay };
                lives[*job as usize].nacks.push(nack);
            }
            Event::Cut { .. } => verdict.cuts += 1,
            Event::Delivered(_) => {}
        }
    }
    lives
}

/// The second pass: one delivery against the life of its job.
fn judge(delivered: &Delivered, lives: &[Life], cuts: &[Nanos], verdict: &mut Verdict) {
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
    if life.ack.as_ref().is_some_and(|ack| ack.forbids(delivered, cuts)) {
        verdict.after_ack.push(job);
    }
}

impl Life {
    /// Keeps the ack that was answered first.
    fn acked(&mut self, ack: Ack) {
        if self.ack.as_ref().is_none_or(|known| ack.at < known.at) {
            self.ack = Some(ack);
        }
    }
}

impl Ack {
    /// Whether this delivery must not be: it was sent after the ack was answered. One that is only
    /// read later was sent before: by its number, or because its stream belongs to a server that was
    /// cut off before the ack, so that what it had sent lay in the reader's socket since then.
    fn forbids(&self, delivered: &Delivered, cuts: &[Nanos]) -> bool {
        let handed_over_later =
            delivered.delivery >= self.delivery || delivered.stream_since > self.at;
        let left_over = cuts.iter().any(|cut| delivered.stream_since < *cut && *cut < self.at);
        delivered.at > self.at
            && handed_over_later
            && !left_over
            && delivered.receipt != self.receipt
    }
}

impl Verdict {
    /// Whether every promise was kept.
    pub(crate) fn sound(&self) -> bool {
        let lists = [&self.lost, &self.after_ack, &self.early, &self.damaged];
        lists.iter().all(|list| list.is_empty()) && self.unexpected == 0 && self.reused == 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} enqueued, {} acked, {} delivered, {} cuts: {} lost, {} after their ack, {} early, \
             {} damaged, {} unexpected, {} receipts reused, {} duplicates",
            self.enqueued,
            self.acked,
            self.deliveries,
            self.cuts,
            self.lost.len(),
            self.after_ack.len(),
            self.early.len(),
            self.damaged.len(),
            self.unexpected,
            self.reused,
            self.duplicates,
        )?;
        for (name, jobs) in [("lost", &self.lost), ("after ack", &self.after_ack)] {
            if !jobs.is_empty() {
                write!(f, "\n{name}: {:?}", &jobs[..jobs.len().min(20)])?;
            }
        }
        Ok(())
    }
}

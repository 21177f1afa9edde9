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
//! - overlap, beyond, miscounted, renumbered: see [`repeats`].
//! - after delete: a job was delivered although its deletion was answered OK before; what was on its way counts as
//!   little as above.
//! - hurried, overtried, forsaken: see [`retries`]. Failures may be miscounted there, too.
//! - misfiled: a dead letter that the servers do not list, or list twice, or one of a job that is none.
//! - doubled: one job under two ids.
//! - unexpected, damaged: a job that nobody asked for, a body that is not the one sent.
//! - reused: a receipt that came twice.
//! - held back, undone: what would be lost or after its ack, if its shard had not died soon after it answered; see
//!   [`forgotten`]. Allowed and counted.
//! - duplicates: repeats that no nack asked for. Allowed and counted: delivery is at least once.

mod forgotten;
pub(crate) mod history;
mod repeats;
mod retries;
mod tests;
mod verdict;

use std::collections::{HashMap, HashSet};

use forgotten::Forgotten;
use history::{Delivered, Event, Nanos, Was};
use repeats::Repeats;
use retries::Retries;

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
    deletion: Deletion,
    acks: Vec<Ack>,
    /// The last hand-over.
    handed_over: i32,
    nacks: Vec<Nack>,
    retries: Retries,
    deliveries: usize,
    /// When the last one so far arrived.
    seen: Nanos,
    /// Those that nobody may have forgotten.
    lasting: usize,
}

/// The first settle that was answered OK and ended it, or its deletion.
#[derive(Clone, Debug)]
struct End {
    at: Nanos,
    delivery: i32,
    receipt: String,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Acked,
    Buried,
    /// By a failure that was the last one allowed.
    GivenUp,
    Deleted,
}

/// What is known of its deletion.
#[derive(Clone, Debug, Default)]
struct Deletion {
    sent: bool,
    /// It was answered OK.
    end: Option<End>,
    /// It was that which ended the job.
    cancelled: bool,
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
    for event in events {
        if let Event::DeadLetters { jobs } = event {
            verdict.misfiled = misfiled(&lives, jobs);
        }
    }
    Repeats::read(events, &cuts, &forgotten).judge(&mut verdict);
    verdict
}

/// Jobs that are not as often in that list as they are dead letters.
fn misfiled(lives: &[Life], dead: &[u32]) -> Vec<u32> {
    let mut listed: HashMap<u32, usize> = HashMap::new();
    dead.iter().for_each(|job| *listed.entry(*job).or_default() += 1);
    // Of what its shard may have held back nobody knows what became of it.
    let jobs = (0..).zip(lives).filter(|(_, life)| life.held_back_ends.is_empty());
    let is_wrong = |(job, life): &(u32, &Life)| {
        listed.get(job).copied().unwrap_or(0) != usize::from(life.is_dead())
    };
    let wrong = jobs.filter(is_wrong);
    wrong.map(|(job, _)| job).collect()
}

/// The first pass: everything but the judgement of deliveries.
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
                // That it is gone may have another reason then.
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
    if life.deletion.end.as_ref().is_some_and(|end| end.forbids(delivered, cuts)) {
        verdict.after_delete.push(job);
    }
    life.retries.judge(job, delivered, verdict);
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

    /// `lasts`: nobody may have forgotten it; `counts`: nor how often it was handed over.
    fn delivered(&mut self, delivered: &Delivered, lasts: bool, counts: bool) {
        self.deliveries += 1;
        self.seen = self.seen.max(delivered.at);
        self.lasting += usize::from(lasts);
        self.called(&delivered.id, lasts);
        self.retries.came(delivered);
        if !lasts {
            self.retries.forget();
        }
        if counts {
            self.handed_over = self.handed_over.max(delivered.delivery);
        }
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
    /// under an earlier one may be told the same. What is cancelled has no lease at all.
    fn is_outdated(&self) -> bool {
        if self.deletion.cancelled && self.is_acked_for_sure() {
            return true;
        }
        let explains =
            |ack: &Ack, other: &Ack| other.delivery > ack.delivery && other.sent <= ack.at;
        let acks = self.acks.iter().filter(|ack| ack.delivery < self.handed_over);
        acks.into_iter().any(|ack| !self.acks.iter().any(|other| explains(ack, other)))
    }

    /// Whether it is a dead letter.
    fn is_dead(&self) -> bool {
        self.end.as_ref().is_some_and(|end| matches!(end.how, How::Buried | How::GivenUp))
    }

    /// Whether an ack of its own was answered OK: not only that it was found to have ended.
    fn is_acked_for_sure(&self) -> bool {
        self.acks.iter().any(|ack| ack.delivery != i32::MAX)
    }

    /// What can be said without looking at single deliveries.
    fn judge(&self, job: u32, verdict: &mut Verdict) {
        let end = self.end.as_ref().or(self.held_back_ends.last());
        let known = self.answered || self.lasting > 0;
        let exists = known || self.held_back || self.deliveries > 0;
        verdict.enqueued += usize::from(self.answered || self.held_back);
        verdict.exist += usize::from(exists);
        verdict.doubtful += usize::from(exists && !known);
        verdict.undone += usize::from(self.undone);
        let asked_for = self.nacks.len() + self.retries.repeats();
        verdict.duplicates += self.deliveries.saturating_sub(1 + asked_for);
        match end.map(|end| end.how) {
            Some(_) if self.deletion.cancelled => verdict.cancelled += 1,
            Some(How::Acked) if self.deletion.is_unknown() && !self.is_acked_for_sure() => {
                verdict.either += 1;
            }
            Some(How::Acked) => verdict.acked += 1,
            Some(how) => {
                verdict.buried += 1;
                verdict.given_up += usize::from(how == How::GivenUp);
            }
            None if self.deletion.cancelled || self.deletion.is_unknown() => verdict.cancelled += 1,
            None if self.answered => verdict.lost.push(job),
            None if self.held_back => verdict.held_back.push(job),
            None => {}
        }
        if self.end.as_ref().is_some_and(|end| self.retries.is_forsaken(end)) {
            verdict.forsaken.push(job);
        }
        if self.doubled {
            verdict.doubled.push(job);
        }
    }
}

// === impl Deletion ===

impl Deletion {
    /// What was not due was in nobody's hands: all that comes later was handed over later. Of the rest that is known
    /// only of what comes on streams that were opened later.
    fn answered(&mut self, at: Nanos, was: Was) {
        let delivery = if was == Was::Scheduled { 0 } else { i32::MAX };
        self.end = Some(End { at, delivery, receipt: String::new(), how: How::Deleted });
        self.cancelled = was != Was::Over;
    }

    /// Whether it was sent and nobody knows what came of it.
    fn is_unknown(&self) -> bool {
        self.sent && self.end.is_none()
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

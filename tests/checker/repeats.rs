//! Exclusive leases: every repeat must have an explanation.
//!
//! The deliveries of a job are ordered by their numbers. Each one but the first needs a reason why the lease before
//! it was over: a nack was sent, its stream broke and the grace passed, or its time ran out. Without one, two leases
//! lived at once: an overlap. A broken stream explains nothing for a lease that was extended after the break, unless
//! a later stream of the worker, which adopted it, broke without another one.
//!
//! A broken stream explains only repeats of leases that were open when it broke: delivered by then, without an
//! answered settle and without a sent nack. So no break has more repeats than there were such leases.
//!
//! Failures are miscounted when their number rises without a nack that counts and before a lease can have expired, or
//! when it falls.
//!
//! A lease begins a little before its delivery arrives, by the time of the message in flight: the checker allows
//! [`SLACK`] and the longest time for which the recorder stood still meanwhile.
//!
//! Deliveries of a job are numbered: of two with one number the server had no record of the first, because its stream
//! broke, or because the power was cut before its claim was on the disk.

use std::collections::HashMap;

use super::forgotten::Forgotten;
use super::history::{Delivered, Event, Nanos};
use super::{Cuts, Verdict};

/// Longest time of a message from one process to another on a busy machine.
pub(super) const SLACK: Nanos = 600_000_000;

/// Facts about leases beside their deliveries.
pub(super) struct Repeats<'a> {
    by_job: HashMap<u32, Vec<&'a Delivered>>,
    nacks: HashMap<&'a str, Nacks>,
    extends: HashMap<&'a str, Vec<(Nanos, Nanos)>>,
    ended: HashMap<u64, Nanos>,
    /// Workers of streams, and the times of their opening.
    opened: HashMap<u64, (usize, Nanos)>,
    /// Time of the first OK answer to an ack of a receipt, or to a nack that dead-letters it.
    settled: HashMap<&'a str, Nanos>,
    /// Times at which nacks of a delivery were sent that were answered OK.
    nacked: HashMap<(u32, i32), Vec<Nanos>>,
    cuts: &'a Cuts,
    forgotten: &'a Forgotten<'a>,
    /// Times at which the recorder stood still, and the length up to then.
    stalls: Vec<(Nanos, Nanos)>,
}

/// Times at which nacks of one receipt were first sent.
#[derive(Default)]
struct Nacks {
    any: Option<Nanos>,
    failed: Option<Nanos>,
}

/// Reason why a lease was over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Nacked,
    Broken,
    RanOut,
    Forgotten,
}

// === impl Repeats ===

impl<'a> Repeats<'a> {
    pub(super) fn read(events: &'a [Event], cuts: &'a Cuts, forgotten: &'a Forgotten<'a>) -> Self {
        let mut repeats = Self {
            by_job: HashMap::new(),
            nacks: HashMap::new(),
            extends: HashMap::new(),
            ended: HashMap::new(),
            opened: HashMap::new(),
            settled: HashMap::new(),
            nacked: HashMap::new(),
            cuts,
            forgotten,
            stalls: Vec::new(),
        };
        events.iter().for_each(|event| repeats.note(event));
        for deliveries in repeats.by_job.values_mut() {
            deliveries.sort_by_key(|delivered| (delivered.delivery, delivered.at));
        }
        repeats
    }

    fn note(&mut self, event: &'a Event) {
        match event {
            Event::Delivered(delivered) => {
                if let Some(job) = delivered.job {
                    self.by_job.entry(job).or_default().push(delivered);
                }
            }
            Event::Nack { at, receipt, failed, .. } => {
                let nacks = self.nacks.entry(receipt).or_default();
                nacks.any.get_or_insert(*at);
                if *failed {
                    nacks.failed.get_or_insert(*at);
                }
            }
            Event::Acked { job, at, receipt, .. } | Event::Buried { job, at, receipt, .. }
                if !self.forgotten.may_be(*job, *at) =>
            {
                self.settled.entry(receipt).or_insert(*at);
            }
            Event::Nacked { job, delivery, sent, .. }
            | Event::Failed { job, delivery, sent, .. } => {
                self.nacked.entry((*job, *delivery)).or_default().push(*sent);
            }
            Event::Extended { job, sent, receipt, lease } => {
                // A nack that may be lost counts for nothing. It was answered a little after it was sent.
                if self.forgotten.may_be(*job, *sent) || self.forgotten.may_be(*job, sent + SLACK) {
                    return;
                }
                self.extends.entry(receipt).or_default().push((*sent, *lease));
            }
            Event::Ended { stream, at } => {
                self.ended.entry(*stream).or_insert(*at);
            }
            Event::Opened { stream, worker, at, .. } => {
                self.opened.insert(*stream, (*worker, *at));
            }
            Event::Stalled { at, length } => self.stalls.push((*at, *length)),
            _ => {}
        }
    }

    pub(super) fn judge(&self, verdict: &mut Verdict) {
        verdict.doubt = SLACK + self.stalls.iter().map(|stall| stall.1).max().unwrap_or(0);
        for (job, deliveries) in &self.by_job {
            let open = deliveries.iter().filter(|delivered| self.was_open(delivered));
            verdict.open_at_breaks += open.count();
            for pair in deliveries.windows(2) {
                let (before, after) = (pair[0], pair[1]);
                let why = self.why_over(before, after);
                let forgotten = self.forgotten.between(*job, before, after);
                let cut = self.cuts.of_power(before.stream_since, after.at).next().is_some();
                let answered = self.is_nacked(*job, before, after);
                // A delivery does not wait for the disk: a power cut may lose a claim, as long as no settle of it was
                // answered.
                let is_known = why == Some(Why::Broken)
                    || forgotten
                    || (cut && !answered)
                    || self.lay_around(before)
                    || self.lay_around(after);
                if before.delivery == after.delivery && !is_known {
                    verdict.renumbered.push(*job);
                }
                // A power cut may lose a settle.
                if why == Some(Why::Broken) && !forgotten && !cut && !self.was_open(before) {
                    verdict.beyond.push(*job);
                }
                match why {
                    None => verdict.overlap.push(*job),
                    Some(Why::Forgotten) => {}
                    Some(Why::Nacked) => verdict.unanswered += usize::from(!answered),
                    Some(Why::Broken) => verdict.broken += 1,
                    Some(Why::RanOut) => verdict.ran_out += 1,
                }
                if !forgotten && !self.failures_fit(before, after) {
                    verdict.miscounted.push(*job);
                }
            }
        }
        verdict.overlap.sort_unstable();
        verdict.miscounted.sort_unstable();
        verdict.renumbered.sort_unstable();
        verdict.beyond.sort_unstable();
    }

    /// Returns whether a nack of `before` was answered OK that was sent before `after` came: of two deliveries with
    /// one number each has its own.
    fn is_nacked(&self, job: u32, before: &Delivered, after: &Delivered) -> bool {
        let sent = self.nacked.get(&(job, before.delivery)).into_iter().flatten();
        sent.into_iter().any(|sent| (before.at..=after.at).contains(sent))
    }

    /// Returns whether its stream had broken by the time it was read.
    fn lay_around(&self, delivered: &Delivered) -> bool {
        let Delivered { stream, server, stream_since, at, .. } = delivered;
        let cut = self.cuts.of(*server, *stream_since, *at).next().is_some();
        cut || self.ended.get(stream).is_some_and(|ended| ended <= at)
    }

    /// Returns by how much a lease may have begun before `before` arrived, or `after` was dated too late.
    fn slack(&self, before: &Delivered, after: &Delivered) -> Nanos {
        let dates = [before.at, after.at];
        let near = |(end, length): &&(Nanos, Nanos)| {
            let since = end.saturating_sub(length + SLACK);
            dates.iter().any(|date| (since..=end + SLACK).contains(date))
        };
        SLACK + self.stalls.iter().filter(near).map(|stall| stall.1).max().unwrap_or(0)
    }

    /// Returns why the lease of `before` was over when `after` came.
    fn why_over(&self, before: &Delivered, after: &Delivered) -> Option<Why> {
        let nacks = self.nacks.get(before.receipt.as_str());
        let nacked = nacks.and_then(|nacks| nacks.any).is_some_and(|sent| sent <= after.at);
        // Independent of the order in which the two arrived: `before` lay in a socket.
        let arrived = if before.at <= after.at { before.at } else { before.stream_since };
        let extends = self.extends.get(before.receipt.as_str()).into_iter().flatten();
        let ends = extends.map(|(sent, lease)| sent + lease).chain([arrived + before.lease]);
        let slack = self.slack(before, after);
        let ran_out = ends.max().is_some_and(|end| end <= after.at + slack);
        let forgotten = before.job.is_some_and(|job| self.forgotten.between(job, before, after));
        match () {
            () if nacked => Some(Why::Nacked),
            () if self.broke(before, after.at + slack) => Some(Why::Broken),
            () if ran_out => Some(Why::RanOut),
            () if forgotten => Some(Why::Forgotten),
            () => None,
        }
    }

    /// Returns whether it was leased, or on the way to the worker, when its stream broke.
    fn was_open(&self, delivered: &Delivered) -> bool {
        let ended = self.ended.get(&delivered.stream).copied();
        let breaks = self.breaks(delivered).chain(ended.filter(|ended| delivered.at <= *ended));
        let receipt = delivered.receipt.as_str();
        let nacked = self.nacks.get(receipt).and_then(|nacks| nacks.any);
        let settled = self.settled.get(receipt).copied().into_iter().chain(nacked).min();
        breaks.min().is_some_and(|first| settled.is_none_or(|settled| settled >= first))
    }

    /// Returns the times at which its server was cut off while its stream was open.
    fn breaks(&self, delivered: &Delivered) -> impl Iterator<Item = Nanos> {
        let ended = self.ended.get(&delivered.stream).copied();
        self.cuts.of(delivered.server, delivered.stream_since, ended.unwrap_or(Nanos::MAX))
    }

    /// Returns whether the stream of `before` broke so early that its grace was over by `now` at the latest.
    fn broke(&self, before: &Delivered, now: Nanos) -> bool {
        let ended = self.ended.get(&before.stream).copied();
        let power = self.cuts.of_power(before.stream_since, ended.unwrap_or(Nanos::MAX));
        let forgotten = power.min().is_some_and(|cut| cut <= now);
        let cuts = self.breaks(before);
        let first = cuts.chain(ended).min();
        let extends = self.extends.get(before.receipt.as_str()).into_iter().flatten();
        let last = extends.map(|(sent, _)| *sent).max().unwrap_or(0);
        let spoken_for = ended.is_some_and(|ended| last >= ended);
        let adopter = spoken_for.then(|| self.adopter_broke(before, last)).flatten();
        let first = if spoken_for { adopter } else { first };
        forgotten || first.is_some_and(|first| first + before.grace <= now)
    }

    /// Returns when the first of the streams broke that the worker opened after its last Extend: its end decides
    /// about the leases that it has adopted.
    fn adopter_broke(&self, delivered: &Delivered, extended: Nanos) -> Option<Nanos> {
        let (worker, _) = self.opened.get(&delivered.stream)?;
        let later = self.opened.iter().filter(|(_, (by, at))| by == worker && *at > extended);
        later.filter_map(|(stream, _)| self.ended.get(stream)).min().copied()
    }

    /// Returns whether the count of failures of `after` can follow that of `before`.
    fn failures_fit(&self, before: &Delivered, after: &Delivered) -> bool {
        if after.attempt <= before.attempt {
            return after.attempt == before.attempt;
        }
        let nacks = self.nacks.get(before.receipt.as_str());
        let failed = nacks.and_then(|nacks| nacks.failed).is_some_and(|sent| sent <= after.at);
        // Like in `why_over`: `before` may have lain in a socket.
        let arrived = if before.at <= after.at { before.at } else { before.stream_since };
        failed || arrived + before.lease <= after.at + self.slack(before, after)
    }
}

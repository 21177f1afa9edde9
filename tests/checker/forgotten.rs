//! Answers that a store may lose when it dies: writes that it had answered and not yet synced.
//!
//! An [`Event::HeldBack`] gives the span of such answers. Two things narrow it. FSYNCED answers hold. And a shard
//! loses the end of a log: where a job outlived the death, everything that its shard had answered before that job was
//! enqueued has outlived it, too. All times are of one clock, so this needs no slack: it is exact.
//!
//! Answers of other shards are binding. A job lies where the answer to its enqueue or its own id names the shard.
//! If neither is known, as for an unseen job that an ack enqueued, the spans of all shards count.

use std::collections::HashMap;

use super::history::{Delivered, Event, Nanos};
use super::repeats::SLACK;

/// All spans of a history.
#[derive(Debug, Default)]
pub(super) struct Forgotten<'a> {
    spans: Vec<Span<'a>>,
    shards: HashMap<u32, &'a str>,
}

/// A span between two moments in which a shard's answers may be lost.
#[derive(Debug)]
struct Span<'a> {
    shard: &'a str,
    from: Nanos,
    to: Nanos,
}

/// Times of a job: first enqueue, first answer and last delivery; and whether it may have been written twice.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    asked: Option<Nanos>,
    answered: Option<Nanos>,
    delivered: Nanos,
    again: bool,
}

// === impl Forgotten ===

impl<'a> Forgotten<'a> {
    pub(super) fn read(events: &'a [Event]) -> Self {
        let mut all = Self::default();
        for event in events {
            if let Event::HeldBack { shard, from, to } = event {
                // Jobs that it had before its previous death, and has had since, were read from the disk.
                let deaths = all.spans.iter().filter(|span| span.shard == shard);
                let born = deaths.map(|span| span.to + 1).max().unwrap_or_default();
                all.spans.push(Span { shard, from: born.max(*from), to: *to });
            }
        }
        if all.spans.is_empty() {
            return all;
        }
        let mut times = HashMap::<u32, Times>::new();
        events.iter().for_each(|event| all.note(event, &mut times));
        for (job, times) in &times {
            let shard = all.shards.get(job);
            all.spans.iter_mut().filter(|span| Some(&span.shard) == shard).for_each(|span| {
                span.narrow(times);
            });
        }
        all
    }

    fn note(&mut self, event: &'a Event, times: &mut HashMap<u32, Times>) {
        match event {
            Event::Enqueue { job, at, .. } => {
                times.entry(*job).or_default().asked.get_or_insert(*at);
            }
            Event::Enqueued { job, at, id, .. } => {
                times.entry(*job).or_default().answered.get_or_insert(*at);
                self.lies_on(*job, shard_of(id));
            }
            Event::Again { job, .. } => times.entry(*job).or_default().again = true,
            Event::LiesOn { job, shard } => self.lies_on(*job, Some(shard)),
            Event::Delivered(Delivered { job: Some(job), id, at, .. }) => {
                let times = times.entry(*job).or_default();
                times.delivered = times.delivered.max(*at);
                self.lies_on(*job, shard_of(id));
            }
            _ => {}
        }
    }

    fn lies_on(&mut self, job: u32, shard: Option<&'a str>) {
        if let Some(shard) = shard {
            self.shards.entry(job).or_insert(shard);
        }
    }

    /// Returns whether the answer about this job at that moment may be lost.
    pub(super) fn may_be(&self, job: u32, at: Nanos) -> bool {
        self.spans_of(job).any(|span| (span.from..=span.to).contains(&at))
    }

    /// Returns whether both moments lie before the same death, which may have lost both.
    pub(super) fn together(&self, job: u32, one: Nanos, other: Nanos) -> bool {
        let has = |span: &Span<'_>, at| (span.from..=span.to).contains(&at);
        self.spans_of(job).any(|span| has(span, one) && has(span, other))
    }

    /// Returns whether its shard died between these moments: then a missing job may be lost instead of done.
    pub(super) fn died_between(&self, job: u32, since: Nanos, until: Nanos) -> bool {
        self.spans_of(job).any(|span| (since..=until).contains(&span.to))
    }

    /// Returns whether the one delivery may be lost, and the other came after that.
    pub(super) fn between(&self, job: u32, one: &Delivered, other: &Delivered) -> bool {
        let (first, last) = (one.at.min(other.at), one.at.max(other.at));
        // A message in flight may be read a little later.
        let parts =
            |span: &Span<'_>| span.from <= first && first <= span.to + SLACK && span.to < last;
        self.spans_of(job).any(parts)
    }

    fn spans_of(&self, job: u32) -> impl Iterator<Item = &Span<'a>> {
        let shard = self.shards.get(&job).copied();
        self.spans.iter().filter(move |span| shard.is_none_or(|shard| shard == span.shard))
    }
}

/// Returns the shard in a server-made id.
fn shard_of(id: &str) -> Option<&str> {
    id.split_once('~').map(|(shard, _)| shard)
}

// === impl Span ===

impl Span<'_> {
    /// Narrows the span: a job that was answered before the death and came after it was not held back, nor was
    /// anything before it.
    fn narrow(&mut self, job: &Times) {
        let Times { asked: Some(asked), answered: Some(answered), delivered, again } = *job else {
            return;
        };
        if !again && answered <= self.to && delivered > self.to + SLACK {
            self.from = self.from.max(asked);
        }
    }
}

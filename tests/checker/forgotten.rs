//! What a store may forget when it dies: what it had answered and not yet brought to the disk.
//!
//! An [`Event::HeldBack`] says from when to when that may be so. Two things narrow it. What was answered FSYNCED
//! holds. And what is held back is the end of a log: where a job outlived the death, all that its shard had answered
//! before that job was asked for has outlived it, too. One clock, and no slack in that: it is exact.
//!
//! Answers of other shards bind. A job lies where the answer to its enqueue or its own id says. Where neither is known, as
//! of a job that an ack enqueues and nobody saw, the spans of all shards count.

use std::collections::HashMap;

use super::history::{Delivered, Event, Nanos};
use super::repeats::SLACK;

/// All spans of a history.
#[derive(Debug, Default)]
pub(super) struct Forgotten<'a> {
    spans: Vec<Span<'a>>,
    shards: HashMap<u32, &'a str>,
}

/// What a shard answered between these moments may be gone.
#[derive(Debug)]
struct Span<'a> {
    shard: &'a str,
    from: Nanos,
    to: Nanos,
}

/// When a job was asked for and first answered, and when it was last delivered; whether it may have been written twice.
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
                // What it had before it died the last time, and has had since, it has read from the disk.
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

    /// Whether what was answered about this job at that moment may be gone.
    pub(super) fn may_be(&self, job: u32, at: Nanos) -> bool {
        self.spans_of(job).any(|span| (span.from..=span.to).contains(&at))
    }

    /// Whether both moments lie before the same death, which may have forgotten both.
    pub(super) fn together(&self, job: u32, one: Nanos, other: Nanos) -> bool {
        let has = |span: &Span<'_>, at| (span.from..=span.to).contains(&at);
        self.spans_of(job).any(|span| has(span, one) && has(span, other))
    }

    /// Whether its shard died between these moments: then a job that is not there may be forgotten rather than done.
    pub(super) fn died_between(&self, job: u32, since: Nanos, until: Nanos) -> bool {
        self.spans_of(job).any(|span| (since..=until).contains(&span.to))
    }

    /// Whether the one delivery may be forgotten, and the other came after that.
    pub(super) fn between(&self, job: u32, one: &Delivered, other: &Delivered) -> bool {
        let (first, last) = (one.at.min(other.at), one.at.max(other.at));
        // A message that was under way may be read a little later.
        let parts =
            |span: &Span<'_>| span.from <= first && first <= span.to + SLACK && span.to < last;
        self.spans_of(job).any(parts)
    }

    fn spans_of(&self, job: u32) -> impl Iterator<Item = &Span<'a>> {
        let shard = self.shards.get(&job).copied();
        self.spans.iter().filter(move |span| shard.is_none_or(|shard| shard == span.shard))
    }
}

/// The shard that an id names which the server made.
fn shard_of(id: &str) -> Option<&str> {
    id.split_once('~').map(|(shard, _)| shard)
}

// === impl Span ===

impl Span<'_> {
    /// A job that was answered before the death and came after it was not held back, nor was anything before it.
    fn narrow(&mut self, job: &Times) {
        let Times { asked: Some(asked), answered: Some(answered), delivered, again } = *job else {
            return;
        };
        if !again && answered <= self.to && delivered > self.to + SLACK {
            self.from = self.from.max(asked);
        }
    }
}

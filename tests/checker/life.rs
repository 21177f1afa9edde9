//! Facts about one job, from its calls, answers and deliveries.

use super::history::{Delivered, Nanos, Was};
use super::retries::Retries;
use super::{Cuts, Verdict};

/// Facts about one job.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    pub(super) asked: Option<(Nanos, Nanos)>,
    pub(super) answered: bool,
    /// True if only a shard that may have held it back has answered it.
    pub(super) held_back: bool,
    pub(super) id: Option<String>,
    pub(super) doubled: bool,
    pub(super) end: Option<End>,
    /// Further ends, which its shard may have held back.
    pub(super) held_back_ends: Vec<End>,
    pub(super) undone: bool,
    pub(super) deletion: Deletion,
    pub(super) acks: Vec<Ack>,
    /// Number of the last delivery.
    pub(super) handed_over: i32,
    pub(super) nacks: Vec<Nack>,
    pub(super) retries: Retries,
    pub(super) deliveries: usize,
    /// Time of the last delivery so far.
    pub(super) seen: Nanos,
    /// Number of deliveries that cannot be lost.
    pub(super) lasting: usize,
}

/// First settle that was answered OK and ended it, or its deletion.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) at: Nanos,
    pub(super) delivery: i32,
    pub(super) receipt: String,
    pub(super) how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    Acked,
    Buried,
    /// Ended by the last allowed failure.
    GivenUp,
    Deleted,
}

/// Facts about its deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct Deletion {
    pub(super) sent: bool,
    /// Time and answer, if it was answered OK.
    pub(super) end: Option<End>,
    /// True if the deletion ended the job.
    pub(super) cancelled: bool,
}

/// An ack that was answered OK and not held back, and the time of its first sending.
#[derive(Clone, Debug)]
pub(super) struct Ack {
    pub(super) delivery: i32,
    pub(super) sent: Nanos,
    pub(super) at: Nanos,
}

#[derive(Clone, Debug)]
pub(super) struct Nack {
    pub(super) delivery: i32,
    pub(super) sent: Nanos,
    pub(super) not_before: Nanos,
}

// === impl Life ===

impl Life {
    pub(super) fn answered(&mut self, id: &String, lasts: bool) {
        self.written(lasts);
        self.called(id, lasts);
    }

    pub(super) fn written(&mut self, lasts: bool) {
        self.answered |= lasts;
        self.held_back |= !lasts;
    }

    /// Records a delivery. `lasts`: it cannot be lost; `counts`: neither can its delivery number.
    pub(super) fn delivered(&mut self, delivered: &Delivered, lasts: bool, counts: bool) {
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
    pub(super) fn ended(&mut self, end: End, lasts: bool) {
        if !lasts {
            self.held_back_ends.push(end);
        } else if self.end.as_ref().is_none_or(|known| end.at < known.at) {
            self.end = Some(end);
        }
    }

    /// Settles, by the list of dead letters, how a job ended whose ends its shard may have held back: after an ack that was
    /// undone, its last attempt may have failed.
    pub(super) fn end_as_listed(&mut self, is_dead: bool) {
        let held_back = self.held_back_ends.last_mut().filter(|_| self.end.is_none());
        if let Some(end) = held_back
            && matches!(end.how, How::Buried | How::GivenUp) != is_dead
        {
            end.how = if is_dead { How::Buried } else { How::Acked };
        }
    }

    /// Keeps the first id. An id that is lost together with the ack that made it is replaced by another one the next
    /// time.
    pub(super) fn called(&mut self, id: &String, lasts: bool) {
        if lasts {
            self.doubled |= self.id.get_or_insert_with(|| id.clone()) != id;
        }
    }

    /// Returns whether an ack counted although a later lease existed. Once the job is acknowledged under that lease,
    /// an ack under an earlier one may be answered OK, too. A cancelled job has no lease at all.
    pub(super) fn is_outdated(&self) -> bool {
        if self.deletion.cancelled && self.is_acked_for_sure() {
            return true;
        }
        let explains =
            |ack: &Ack, other: &Ack| other.delivery > ack.delivery && other.sent <= ack.at;
        let acks = self.acks.iter().filter(|ack| ack.delivery < self.handed_over);
        acks.into_iter().any(|ack| !self.acks.iter().any(|other| explains(ack, other)))
    }

    /// Returns whether it is a dead letter.
    pub(super) fn is_dead(&self) -> bool {
        self.end.as_ref().is_some_and(|end| matches!(end.how, How::Buried | How::GivenUp))
    }

    /// Returns whether an ack of its own was answered OK, instead of the job being found ended.
    pub(super) fn is_acked_for_sure(&self) -> bool {
        self.acks.iter().any(|ack| ack.delivery != i32::MAX)
    }

    /// Judges everything that does not need single deliveries.
    pub(super) fn judge(&self, job: u32, verdict: &mut Verdict) {
        let end = self.end.as_ref().or(self.held_back_ends.last());
        let known = self.answered || self.lasting > 0;
        let exists = known || self.held_back || self.deliveries > 0;
        verdict.enqueued += usize::from(self.answered || self.held_back);
        verdict.exist += usize::from(exists);
        if exists && !known {
            verdict.doubtful.push(job);
        }
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
    /// Records the answer. A job that was not due was neither leased nor on the way: every later arrival was
    /// delivered later. Otherwise that is certain only for arrivals on streams that were opened later.
    pub(super) fn answered(&mut self, at: Nanos, was: Was) {
        let delivery = if was == Was::Scheduled { 0 } else { i32::MAX };
        self.end = Some(End { at, delivery, receipt: String::new(), how: How::Deleted });
        self.cancelled = was != Was::Over;
    }

    /// Returns whether it was sent and its outcome is unknown.
    pub(super) fn is_unknown(&self) -> bool {
        self.sent && self.end.is_none()
    }
}

// === impl End ===

impl End {
    /// Returns whether this delivery must not be: it was sent after the ack was answered. A delivery that is only
    /// read later was sent before: by its number, or because its stream belongs to a server that was cut off before
    /// the ack, so that its messages lay in the reader's socket since then.
    pub(super) fn forbids(&self, delivered: &Delivered, cuts: &Cuts) -> bool {
        let handed_over_later =
            delivered.delivery >= self.delivery || delivered.stream_since > self.at;
        let left_over = cuts.of(delivered.server, delivered.stream_since, self.at).next().is_some();
        delivered.at > self.at
            && handed_over_later
            && !left_over
            && delivered.receipt != self.receipt
    }
}

//! How jobs leave a session: settled, lost or given back; and how the session itself ends.

use tokio::time::Instant;
use tracing::{debug, warn};

use super::Session;
use super::told::not_settled;
use crate::client::worker::Outcome;
use crate::client::worker::leases::Slot;
use crate::client::worker::settler::{Answer, Extended, Kind, Settled};
use crate::pb::{Revocation, RevocationReason};

// === impl Session ===

impl Session {
    // --- jobs end ---

    pub(super) fn answered(&mut self, answer: Answer) {
        match answer {
            Answer::Settled(settled, delayed) => {
                settled.into_iter().for_each(|one| self.settled(one));
                for (slot, error) in delayed {
                    self.tell_trouble(slot, &error);
                }
            }
            Answer::Extended(sent, answers) => {
                for (slot, extended) in answers {
                    match extended {
                        Extended::Yes => {
                            self.leases.extended(slot, sent);
                            self.tell_passed(slot);
                        }
                        Extended::NotNow(error) => {
                            self.leases.not_extended(slot, Instant::now());
                            self.tell_trouble(slot, &error);
                        }
                        Extended::Gone => self.lose(slot, "its lease could not be extended"),
                    }
                }
            }
        }
    }

    pub(super) fn settled(&mut self, settled: Settled) {
        let Settled { slot, kind, result } = settled;
        let Some(job) = self.leases.remove(slot) else { return };
        if let Err(error) = result {
            warn!("{job} {}", not_settled(&error));
            self.unsettled(slot);
            return;
        }
        self.tell_passed(slot);
        match kind {
            Kind::Ack => self.summary.acked += 1,
            Kind::Retry => self.summary.failed += 1,
            Kind::Release => self.summary.released += 1,
            Kind::DeadLetter => self.summary.dead_lettered += 1,
        }
    }

    pub(super) fn revoked(&mut self, revocation: &Revocation) {
        let why = match revocation.reason() {
            RevocationReason::Deleted => "it was deleted",
            RevocationReason::LeaseExpired => "its lease ran out",
            RevocationReason::Unspecified => "the server took it back",
        };
        if let Some(slot) = self.leases.find(&revocation.receipt) {
            self.lose(slot, why);
        }
    }

    /// A job is not this worker's any more: its handler stops.
    pub(super) fn lose(&mut self, slot: Slot, why: &str) {
        // Where it has ended already, the answer to its settle says whether that counted.
        if !self.leases.is_settling(slot)
            && let Some(job) = self.leases.remove(slot)
        {
            self.lost(slot, &job, why);
        }
    }

    fn lost(&mut self, slot: Slot, job: &str, why: &str) {
        let trouble = match self.trouble.of(slot) {
            Some(cause) => format!("; it could not be kept, as {cause}"),
            None => String::new(),
        };
        warn!("{job} was taken away: {why}{trouble}");
        self.unsettled(slot);
    }

    /// A job leaves without its end being told to the server: if its handler runs, it stops.
    fn unsettled(&mut self, slot: Slot) {
        self.trouble.leaves(slot);
        self.summary.unsettled += 1;
        self.pending.remove(slot);
        let Some(id) = self.handler_of.remove(&slot) else { return };
        let Some(run) = self.running.get_mut(&id) else { return };
        run.held -= 1;
        // The others of its batch are still good.
        if run.held == 0 {
            run.abort.abort();
        }
    }

    // --- time and end ---

    pub(super) fn on_time(&mut self, now: Instant) {
        let due = self.leases.due(now);
        for (slot, job) in due.lost {
            self.lost(slot, &job, "its lease ran out");
        }
        self.extend(due.extend);
        let idle = self.idle_since.zip(self.idle_exit);
        if idle.is_some_and(|(since, idle)| since + idle <= now) && !self.closing {
            debug!("nothing to do");
            self.finish();
        }
    }

    pub(super) fn extend(&mut self, slots: Vec<Slot>) {
        let lease = |slot| Some((slot, self.leases.receipt(slot)?.clone()));
        let leases: Vec<_> = slots.into_iter().filter_map(lease).collect();
        if !leases.is_empty() {
            self.settler.extend(&leases);
        }
    }

    /// The one Extend that keeps leases over the end of their stream.
    pub(super) fn extend_all(&mut self) {
        let held = self.handler_of.keys().copied().chain(self.pending.slots());
        let slots = held.filter(|slot| self.leases.extend(*slot)).collect();
        self.extend(slots);
    }

    pub(super) fn release_pending(&mut self) {
        for slot in self.pending.take() {
            self.settle(slot, Outcome::release());
        }
    }

    /// Takes no more jobs; those in hand go on, over the end of their stream.
    pub(super) fn finish(&mut self) {
        self.close();
        self.extend_all();
    }

    /// The same, but jobs that have not begun go back.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
        self.close();
        self.release_pending();
        self.extend_all();
    }

    pub(super) fn close(&mut self) {
        self.closing = true;
        for message in self.source.close() {
            self.message(message);
        }
    }
}

//! Finding out whether a shard answers: once there is doubt, and again and again once it is left alone.

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

use crate::store::{About, Error, Event};

use super::super::breaker::{Access, Kind, Opened};
use super::super::op::Op;
use super::doubt::Seen;
use super::{Guard, answers, kind, words};

/// The claim that a probe gives up: none has this nonce, so it writes and changes nothing. A shard that can be read but
/// not written is no use.
const NO_CLAIM: u32 = 0;

// === impl Guard ===

impl Guard {
    /// Hears of the shard what casts doubt on it, as long as somebody has a use for that. `events` are about the
    /// shard.
    pub(in crate::shards) fn listen(self: &Arc<Self>, mut events: broadcast::Receiver<Event>) {
        let guard = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                match events.recv().await {
                    Ok(Event::Lost) => match guard.upgrade() {
                        Some(guard) => guard.doubt(None),
                        None => return,
                    },
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }

    /// The shard may not answer any more, because a call `failed` or by what was heard. Nobody waits for the next
    /// call to find out: of an idle shard that may be seconds away.
    pub(super) fn doubt(self: &Arc<Self>, failed: Option<(Op, &Error)>) {
        if !self.breaker.is_open() && self.doubt.cast(failed) {
            tokio::spawn(Arc::clone(self).make_sure());
        }
    }

    /// Asks until the shard has answered and there is no new doubt, or so many answers have failed to come that it
    /// is left alone. One that only lost a connection answers the first time.
    pub(super) async fn make_sure(self: Arc<Self>) {
        while self.doubt.is_open() {
            if self.breaker.is_open() || self.closing.is_cancelled() {
                continue;
            }
            match self.ask().await {
                // Meanwhile it was found not to answer; the probes see the end of that.
                Ok(()) if self.breaker.is_open() => continue,
                Ok(()) => {
                    self.breaker.succeeded(Access::Probe);
                    self.tell(self.doubt.answered());
                }
                Err((kind, error)) => {
                    self.doubt.stays();
                    let begin = Instant::now();
                    let opened = self.breaker.failed(Access::Probe, kind, words(&error), begin);
                    if opened == Opened::All {
                        self.leave_alone(&error);
                    }
                }
            }
            // Also after an answer: where one call in two fails this would go on for ever.
            tokio::select! {
                () = tokio::time::sleep(self.patience.probes.0) => {}
                () = self.closing.cancelled() => {}
            }
        }
    }

    /// The shard answers. If it did not for a moment, or calls have failed, that is all that there is to be seen of
    /// it.
    fn tell(&self, seen: Seen) {
        let shard = self.name();
        match seen.first {
            Some((op, error)) => {
                let (first_op, failed) = (op.name(), seen.failed);
                let Some(news) = self.said.news_of(&["failed", first_op], failed) else { return };
                let suppressed = news.suppressed();
                tracing::warn!(%shard, failed, suppressed, first_op, error, "store calls failed; the shard answers now");
            }
            None if seen.was_away => {
                tracing::info!(%shard, "the shard did not answer for a moment")
            }
            None => {}
        }
    }

    /// Whether the shard answers; not so when it says that it cannot be used.
    async fn ask(&self) -> Result<(), (Kind, Error)> {
        let (limit, begin) = (self.patience.claim, Instant::now());
        let answer = tokio::time::timeout(limit, self.store.void(NO_CLAIM)).await;
        let kind = kind(&answer, begin.elapsed());
        match answer {
            Ok(Err(error)) if !answers(&error) => Err((kind, error)),
            Ok(_) => Ok(()),
            Err(_) => Err((kind, Error::Unknown(format!("no answer within {limit:?}")))),
        }
    }

    /// The store is known not to answer, and has said so: nobody has to find out first.
    pub(in crate::shards) fn begin_down(self: &Arc<Self>, error: &str) {
        if self.breaker.trip(error) == Opened::All {
            self.begin_probing(false);
        }
    }

    /// The breaker has just opened, by this error. What keeps a shard from working whatever is tried, its store has
    /// told, and tells when that is over.
    pub(super) fn leave_alone(self: &Arc<Self>, error: &Error) {
        let is_told = !self.store.condition().borrow().is_down();
        if is_told {
            let (address, error) = (&self.store.identity().address, words(error));
            tracing::warn!(
                shard = %self.name(), address, error,
                "the shard does not answer; its calls fail at once until it does; see whether it runs and can be reached"
            );
        }
        self.begin_probing(is_told);
    }

    /// The breaker has just opened for reads, by this error.
    pub(super) fn refuse_reads(self: &Arc<Self>, error: &Error) {
        if let Some(news) = self.said.news(&["reads", error.reason()]) {
            let (shard, error, suppressed) = (self.name(), words(error), news.suppressed());
            tracing::warn!(%shard, error, suppressed, "reads of the shard fail and are refused until it answers one; writes go on");
        }
        tokio::spawn(Arc::clone(self).probe_reads());
    }

    /// Reads one row, again and again, until the shard answers or is closed.
    async fn probe_reads(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.breaker.read_pause()) => {}
                () = self.closing.cancelled() => return,
            }
            let read = self.store.topics(String::new(), None, 1);
            if let Ok(Ok(_)) = tokio::time::timeout(self.patience.claim, read).await {
                tracing::debug!(shard = %self.name(), "the shard answers reads again");
                return self.breaker.close_reads();
            }
        }
    }

    /// `told`: the log was told, and is when it is over.
    fn begin_probing(self: &Arc<Self>, told: bool) {
        self.changed(true);
        self.doubt.settle();
        let events = self.store.events(About::Shard);
        tokio::spawn(Arc::clone(self).probe(events, told));
    }

    /// Asks, once at a time, until the shard answers or is closed. A shard that is heard of is asked at once: its
    /// hints may come back before the next pause is over. That makes no pause longer.
    async fn probe(self: Arc<Self>, mut events: broadcast::Receiver<Event>, told: bool) {
        let mut pause = pin!(tokio::time::sleep(self.breaker.pause()));
        loop {
            let is_over = tokio::select! {
                () = &mut pause => true,
                () = heard(&mut events) => false,
                () = self.closing.cancelled() => return,
            };
            match self.ask().await {
                Ok(()) => break,
                Err((kind, error)) => {
                    // What it says may have changed: nobody there, then somebody wrong. A probe without an answer
                    // says less than the call that had none.
                    if !error.outcome_unknown() {
                        self.breaker.failed(Access::Probe, kind, words(&error), Instant::now());
                    }
                    tracing::debug!(shard = %self.name(), %error, "the shard still does not answer");
                }
            }
            if is_over {
                pause.as_mut().reset(Instant::now() + self.breaker.pause());
            }
        }
        self.changed(false);
        self.breaker.close();
        if told {
            tracing::info!(shard = %self.name(), "the shard answers again");
        }
    }

    fn changed(&self, open: bool) {
        self.metrics.set_breaker_open(open);
        self.down.send_modify(|down| *down = if open { *down + 1 } else { *down - 1 });
    }
}

/// Waits for the next sign of life.
async fn heard(events: &mut broadcast::Receiver<Event>) {
    loop {
        match events.recv().await {
            Ok(Event::Lost) => {}
            Ok(_) | Err(RecvError::Lagged(_)) => return,
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

//! Chains: the ack of a job enqueues the next link. Half of the links have a client-chosen id, the others a
//! server-made one from the ack; half of them are delayed.

use std::time::Duration;

use ringq::pb;

use super::{Progress, Shared, job};
use crate::checker::history::{Event, nanos};

/// Number of links behind the first job of a chain.
pub(super) const LINKS: u32 = 4;
const DELAY_MAX_MS: u32 = 300;

impl Shared {
    /// Returns the follow-up of this job: always the same, however often the ack is sent.
    pub(super) fn follow_up(&self, job: u32) -> Option<pb::JobSpec> {
        let mut jobs = self.lock();
        let links = jobs[job as usize].links.checked_sub(1)?;
        let next = jobs[job as usize].next.unwrap_or_else(|| {
            let next = self.begin_in(&mut jobs, Progress { links, ..Progress::default() });
            jobs[job as usize].next = Some(next);
            let (at, delay) = (self.history.now(), nanos(delay(next)));
            self.history.record([Event::Enqueue { job: next, at, delay }]);
            next
        });
        Some(job::spec(next, &id(next), delay(next), false))
    }
}

/// Returns the id of a link; empty: the server makes one. Independent of the lowest bit, which decides the topic.
fn id(link: u32) -> String {
    if link & 2 == 0 { String::new() } else { job::id(link) }
}

fn delay(link: u32) -> Duration {
    let delay = if link & 4 == 0 { 0 } else { 1 + link % DELAY_MAX_MS };
    Duration::from_millis(delay.into())
}

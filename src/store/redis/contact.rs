//! What is known of the Redis without asking it: whether it has ever been the right one, and what keeps it
//! from working or from taking jobs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::domain::ShardName;
use crate::store::{Condition, Error, Trouble};

use super::OpenError;

/// See the module.
pub(super) struct Contact {
    shard: ShardName,
    /// Where it is, without credentials.
    address: String,
    state: Mutex<State>,
    published: watch::Sender<Condition>,
}

struct State {
    /// The server still starts: what is wrong may keep it from that, and is said once it does not.
    opening: bool,
    /// Whether it was the right one and a safe one at least once.
    known: bool,
    /// Why the last attempt to reach it failed.
    failure: Option<String>,
    /// The failure was one that somebody has to mend.
    wrong: bool,
    /// The log was told of a failure, and of no end of it yet.
    told: bool,
    /// By which policy it would throw jobs away.
    evicts: Option<String>,
}

// === impl Contact ===

impl Contact {
    /// With a Redis that nobody has asked yet.
    pub(super) fn new(
        shard: ShardName,
        address: String,
        published: watch::Sender<Condition>,
    ) -> Contact {
        let failure = Some("nobody has reached it yet".to_owned());
        let state =
            State { opening: true, known: false, failure, wrong: false, told: false, evicts: None };
        let contact = Contact { shard, address, state: Mutex::new(state), published };
        contact.publish();
        contact
    }

    /// The server goes on without this Redis, if it must: from now on what is wrong is said here.
    pub(super) fn opened(&self) {
        let mut state = self.state();
        state.opening = false;
        if let (false, Some(failure)) = (state.known, &state.failure) {
            self.say_awaited(failure);
            state.told = true;
        }
    }

    /// Whether it was the right one and a safe one at least once.
    pub(super) fn is_known(&self) -> bool {
        self.state().known
    }

    /// A new connection leads to the right Redis. That ends whatever was told, also where it had another reason last.
    pub(super) fn made(&self) {
        let mut state = self.state();
        if state.told {
            let Contact { shard, address, .. } = self;
            tracing::info!(%shard, address, "the redis is reached and is the right one");
        }
        (state.known, state.failure, state.wrong, state.told) = (true, None, false, false);
        drop(state);
        self.publish();
    }

    /// No connection could be made, or it led to a Redis that cannot be used. What somebody has to mend is said
    /// once, and so is why a Redis is not there yet. One that was there is the business of those who call it.
    pub(super) fn failed(&self, error: &OpenError) {
        let (mut state, text) = (self.state(), error.to_string());
        if !state.opening && state.failure.as_ref() != Some(&text) {
            let Contact { shard, address, .. } = self;
            if error.is_certain() {
                tracing::error!(%shard, address, %error, "the redis cannot be used until that is mended");
                state.told = true;
            } else if !state.known {
                self.say_awaited(&text);
                state.told = true;
            }
        }
        (state.failure, state.wrong) = (Some(text), error.is_certain());
        drop(state);
        self.publish();
    }

    fn say_awaited(&self, error: &str) {
        let Contact { shard, address, .. } = self;
        tracing::warn!(
            %shard, address, error,
            "the redis is not reached yet and tried again until it is; calls of the shard fail meanwhile"
        );
    }

    /// By which policy it throws jobs away when it is full: it takes none then, and goes on with those
    /// that it has.
    pub(super) fn evicts(&self, policy: Option<String>) {
        let mut state = self.state();
        match &policy {
            _ if state.evicts == policy => {}
            Some(policy) => tracing::error!(
                shard = %self.shard, policy,
                "redis drops jobs when it is full: no new ones are taken; set maxmemory-policy to noeviction"
            ),
            None => {
                tracing::info!(shard = %self.shard, "redis keeps what it has, jobs are taken again")
            }
        }
        state.evicts = policy;
        drop(state);
        self.publish();
    }

    fn publish(&self) {
        let trouble = self.trouble();
        self.published.send_if_modified(|condition| {
            let is_new = condition.trouble != trouble;
            condition.trouble = trouble;
            is_new
        });
    }

    /// What is known to be wrong.
    pub(super) fn trouble(&self) -> Option<Trouble> {
        let state = self.state();
        let evicts = || state.evicts.clone().map(|policy| OpenError::Evicts(policy).to_string());
        let failure = state.failure.clone().filter(|_| !state.known || state.wrong);
        let down = if state.wrong { Trouble::Unusable } else { Trouble::Unreached };
        failure.map(down).or_else(|| evicts().map(Trouble::NoJobs))
    }

    /// Refuses new jobs while they would not be safe.
    pub(super) fn admit_jobs(&self) -> Result<(), Error> {
        match &self.state().evicts {
            None => Ok(()),
            Some(policy) => Err(Error::Unavailable(OpenError::Evicts(policy.clone()).to_string())),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_what_is_wrong_now() {
        let published = watch::Sender::new(Condition::default());
        let contact = Contact::new(ShardName::try_new("s0").unwrap(), String::new(), published);
        assert!(matches!(contact.trouble(), Some(Trouble::Unreached(_))), "nobody has asked");
        contact.failed(&OpenError::Unreachable("refused".into()));
        assert!(
            matches!(contact.trouble(), Some(Trouble::Unreached(text)) if text.contains("refused"))
        );
        contact.made();
        assert!(contact.trouble().is_none() && contact.is_known());
        contact.failed(&OpenError::Unreachable("lost".into()));
        assert!(contact.trouble().is_none(), "the breaker's business");
        contact.failed(&OpenError::Replica);
        assert!(
            matches!(contact.trouble(), Some(Trouble::Unusable(text)) if text.contains("replica"))
        );
        contact.made();
        contact.evicts(Some("allkeys-lru".into()));
        let refused = contact.admit_jobs().unwrap_err().to_string();
        assert!(refused.contains("set maxmemory-policy to noeviction"), "{refused}");
        assert!(matches!(contact.trouble(), Some(Trouble::NoJobs(_))));
        contact.evicts(None);
        assert!(contact.trouble().is_none() && contact.admit_jobs().is_ok());
    }
}

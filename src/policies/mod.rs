//! Policies of topics: every shard stores all of them, every replica knows all of them, and no single shard is needed to
//! know them.
//!
//! - `view`: what a replica knows, and which policy a topic has
//! - `copies`: exchanges policies with each shard, so that all have the newest versions within a second
//! - `change`: changes of operators; each is decided on the home shard of its name, where two changes at once meet
//! - `file`: settings from a file, by its revision

mod change;
mod copies;
mod file;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::{TopicName, TopicPolicy};
use crate::shards::Shards;

use copies::ShardCopy;

pub use change::{ChangedPolicy, PolicyChangeError};
pub use file::{FilePolicies, FileRefusal};
pub use view::PolicyView;

/// Policies of all topics. Cheap to clone.
#[derive(Clone)]
pub struct Policies {
    inner: Arc<PoliciesInner>,
}

struct PoliciesInner {
    shards: Shards,
    clock: Clock,
    view: watch::Sender<Arc<PolicyView>>,
    /// Set with the first policy: a server without any looks nothing up.
    has_any: AtomicBool,
    /// Policies that each shard has, in the order of the shards.
    copies: Vec<tokio::sync::Mutex<ShardCopy>>,
}

// === impl Policies ===

impl Policies {
    /// Creates a replica's knowledge of the policies on these shards, without any yet. Until [`Policies::follow`] runs,
    /// it learns only from its own changes.
    #[must_use]
    pub fn new(shards: Shards, clock: Clock) -> Policies {
        let copies = shards.all().iter().map(|_| tokio::sync::Mutex::default()).collect();
        let view = watch::Sender::default();
        let inner = PoliciesInner { shards, clock, view, has_any: AtomicBool::new(false), copies };
        Policies { inner: Arc::new(inner) }
    }

    /// Returns what is known now.
    #[must_use]
    pub fn view(&self) -> Arc<PolicyView> {
        Arc::clone(&self.inner.view.borrow())
    }

    /// Returns what is known now, if there is any policy at all.
    #[must_use]
    pub fn any(&self) -> Option<Arc<PolicyView>> {
        self.inner.has_any.load(Ordering::Acquire).then(|| self.view())
    }

    /// Watches what is known.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<PolicyView>> {
        self.inner.view.subscribe()
    }

    /// Returns the policy of a topic, unless there is none or it was deleted.
    #[must_use]
    pub fn of_topic(&self, topic: &TopicName) -> Option<Arc<TopicPolicy>> {
        let view = self.any()?;
        view.of_topic(topic).filter(|policy| !policy.is_deleted).cloned()
    }

    fn merge(&self, policies: &[Arc<TopicPolicy>]) {
        if policies.is_empty() {
            return;
        }
        self.inner.view.send_if_modified(|view| {
            let mut next = (**view).clone();
            let is_news = next.merge(policies);
            if is_news {
                *view = Arc::new(next);
            }
            is_news
        });
        self.inner.has_any.store(true, Ordering::Release);
    }
}

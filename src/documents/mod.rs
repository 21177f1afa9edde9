//! Documents: every shard stores all of them, every replica knows all of them, and no single shard is needed to know them.
//! [`DocumentName`](crate::domain::DocumentName) lists the kinds.
//!
//! - `view`: what a replica knows, and which policy a topic has
//! - `copies`: exchanges documents with each shard, so that all have the newest versions within a second
//! - `ledger`: what each shard has, and what was removed
//! - `tidy`: removes documents of which nothing is left, once every shard has them
//! - `change`: changes of documents; each is decided on the home shard of its name, where two changes at once meet
//!
//! Each of these serves one kind:
//! - `topic_policy`: changes of policies by calls, and the room for their settings
//! - `topic_file`: settings of topics from a file, by its revision

mod change;
mod copies;
mod ledger;
mod tidy;
mod topic_file;
mod topic_policy;
mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::domain::{Document, TopicName, TopicPolicy};
use crate::shards::Shards;

use ledger::Ledger;

pub use change::DocumentChangeError;
pub use topic_file::{FilePolicies, FileRefusal};
pub use topic_policy::SettingsRoom;
pub use view::DocumentView;

/// All documents. Cheap to clone.
#[derive(Clone)]
pub struct Documents {
    inner: Arc<DocumentsInner>,
}

struct DocumentsInner {
    shards: Shards,
    clock: Clock,
    view: watch::Sender<Arc<DocumentView>>,
    /// Set with the first document: a server without any looks nothing up.
    has_any: AtomicBool,
    /// Locks of the exchanges, one of each shard. A task that takes several takes them in this order.
    gates: Vec<tokio::sync::Mutex<()>>,
    /// Documents that each shard has. Held for moments, and while the view changes.
    ledger: Mutex<Ledger>,
}

// === impl Documents ===

impl Documents {
    /// Creates a replica's knowledge of the documents on these shards, without any yet. Until [`Documents::follow`] runs,
    /// it learns only from its own changes.
    #[must_use]
    pub fn new(shards: Shards, clock: Clock) -> Documents {
        let gates = shards.all().iter().map(|_| tokio::sync::Mutex::default()).collect();
        let ledger = Mutex::new(Ledger::new(shards.all().len()));
        let (view, has_any) = (watch::Sender::default(), AtomicBool::new(false));
        let inner = DocumentsInner { shards, clock, view, has_any, gates, ledger };
        Documents { inner: Arc::new(inner) }
    }

    /// Returns what is known now.
    #[must_use]
    pub fn view(&self) -> Arc<DocumentView> {
        Arc::clone(&self.inner.view.borrow())
    }

    /// Returns what is known now, if there is any document at all.
    #[must_use]
    pub fn any(&self) -> Option<Arc<DocumentView>> {
        self.inner.has_any.load(Ordering::Acquire).then(|| self.view())
    }

    /// Watches what is known.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Arc<DocumentView>> {
        self.inner.view.subscribe()
    }

    /// Returns the policy of a topic, if there is one of which anything is left.
    #[must_use]
    pub fn of_topic(&self, topic: &TopicName) -> Option<Arc<TopicPolicy>> {
        let view = self.any()?;
        view.of_topic(topic).filter(|policy| policy.is_live()).cloned()
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.inner.ledger.lock()
    }

    fn merge(&self, ledger: &mut Ledger, documents: &[Document]) {
        if documents.is_empty() {
            return;
        }
        self.inner.view.send_if_modified(|view| {
            let mut next = (**view).clone();
            let news = next.merge(documents);
            ledger.note(&news);
            if !news.is_empty() {
                *view = Arc::new(next);
            }
            !news.is_empty()
        });
        self.inner.has_any.store(true, Ordering::Release);
    }
}

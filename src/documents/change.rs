//! Changes of documents. A change is decided on the home shard of its name, the owner of the name on the ring, where two
//! changes at once meet; then it is written to all other shards that answer. The others get it when they answer again.

use futures::future::join_all;
use tokio::time::Instant;

use crate::domain::{Document, DocumentContent, DocumentName, JobId, JobKey, Time, TopicName};
use crate::shards::{Shard, ShardError};
use crate::store;

use super::copies::WRITE_MAX;
use super::{DocumentView, Documents};

/// Part of the key by which the home shard of a name is found on the ring. It never changes: two versions of the server
/// must find the same shard.
const HOME_ID: &str = "document";
/// Number of times that a change is decided: other changes of the same document may come first each time.
pub(super) const DECISIONS_MAX: usize = 8;

/// Reason why a document was not changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DocumentChangeError<E> {
    /// The change is not allowed now.
    #[error("{0}")]
    Refused(E),
    /// No more topics can have settings: of the namespace, or of any where that is `None`.
    #[error("no more topics can have settings")]
    NoRoom(Option<String>),
    /// No shard takes new jobs, so no shard is the home of the name.
    #[error("no shard is active")]
    NoActiveShard,
    /// Error of the home shard.
    #[error(transparent)]
    Shard(#[from] ShardError),
}

// === impl Documents ===

impl Documents {
    /// Changes the document of a name: `decide` returns the new content from what is known, `None` to delete it, with a
    /// value that is dropped after the write, or why it is not changed. It may be called several times. The version and the
    /// time of the change are set here. Nothing is written after `until`. Returns the shards that have not taken the change
    /// yet.
    ///
    /// # Errors
    /// [`DocumentChangeError`]; then nothing was changed, unless the outcome is unknown.
    pub(super) async fn change<P, E>(
        &self,
        name: &DocumentName,
        until: Option<Instant>,
        decide: impl Fn(
            &DocumentView,
            Time,
        ) -> Result<(Option<DocumentContent>, P), DocumentChangeError<E>>,
    ) -> Result<Vec<String>, DocumentChangeError<E>> {
        let home = self.home(name).ok_or(DocumentChangeError::NoActiveShard)?;
        for _ in 0..DECISIONS_MAX {
            // Held until the write: what is read meanwhile would raise the expected version, but not what was decided.
            let gate = self.inner.gates[home.index()].lock().await;
            // Reads the last version from the home, and writes it there if another shard has it.
            self.exchange_alone(home).await?;
            let (content, held) = decide(&self.view(), self.inner.clock.now())?;
            let written = self.write_home(home, vec![(name.clone(), content)], until).await?;
            drop(held);
            if !written.is_empty() {
                drop(gate);
                return Ok(self.write_others(home).await);
            }
        }
        Err(ShardError::new(home.name(), contention()).into())
    }

    /// Changes the documents of names by batches, of the shards side by side. `decide` returns the new content of a name, if
    /// it changes. Returns the number of those that changed.
    ///
    /// # Errors
    /// [`DocumentChangeError`]; then some may be changed.
    pub(super) async fn change_all<E>(
        &self,
        names: Vec<DocumentName>,
        decide: impl Fn(&DocumentName, &DocumentView, Time) -> Result<Option<DocumentContent>, E>,
    ) -> Result<usize, DocumentChangeError<E>> {
        let mut by_home: Vec<Vec<DocumentName>> = vec![Vec::new(); self.inner.shards.all().len()];
        for name in names {
            let home = self.home(&name).ok_or(DocumentChangeError::NoActiveShard)?;
            by_home[home.index()].push(name);
        }
        let homes = self.inner.shards.all().iter().zip(by_home);
        let changed = homes.map(|(home, names)| self.change_at(home, names, &decide));
        let changed: Vec<_> = join_all(changed).await;
        let changed: usize = changed.into_iter().sum::<Result<usize, _>>()?;
        join_all(self.inner.shards.all().iter().map(|shard| self.exchange(shard))).await;
        Ok(changed)
    }

    async fn change_at<E>(
        &self,
        home: &Shard,
        names: Vec<DocumentName>,
        decide: &impl Fn(&DocumentName, &DocumentView, Time) -> Result<Option<DocumentContent>, E>,
    ) -> Result<usize, DocumentChangeError<E>> {
        let (mut changed, mut refused, mut names) = (0, 0, names.into_iter().peekable());
        while names.peek().is_some() {
            let _gate = self.inner.gates[home.index()].lock().await;
            self.exchange_alone(home).await?;
            let (now, view) = (self.inner.clock.now(), self.view());
            let (mut contents, mut tried) = (Vec::new(), Vec::new());
            while contents.len() < WRITE_MAX {
                let Some(name) = names.next() else { break };
                let content = decide(&name, &view, now).map_err(DocumentChangeError::Refused)?;
                contents.extend(content.map(|content| (name.clone(), Some(content))));
                tried.push(name);
            }
            let count = contents.len();
            let written = self.write_home(home, contents, None).await?.len();
            changed += written;
            if written < count {
                // Another server was faster, most likely with the same.
                refused += 1;
                if refused > DECISIONS_MAX {
                    return Err(ShardError::new(home.name(), contention()).into());
                }
                names = tried.into_iter().chain(names).collect::<Vec<_>>().into_iter().peekable();
            }
        }
        Ok(changed)
    }

    /// Reads the last version of a document from the shard where changes of it are decided.
    ///
    /// # Errors
    /// [`DocumentChangeError`]; the version that is known here may then be an older one.
    pub async fn refresh<E>(&self, name: DocumentName) -> Result<(), DocumentChangeError<E>> {
        let home = self.home(&name).ok_or(DocumentChangeError::NoActiveShard)?;
        Ok(self.exchange(home).await?)
    }

    /// Returns the shard where changes of a name are decided.
    pub(super) fn home(&self, name: &DocumentName) -> Option<&Shard> {
        let key =
            JobKey { topic: TopicName::stored(&name.to_string()), id: JobId::stored(HOME_ID) };
        self.inner.shards.owner(&key)
    }

    /// Writes decided documents to their home; returns those in whose place no other one was decided before. The caller
    /// holds the gate of the home.
    async fn write_home(
        &self,
        home: &Shard,
        contents: Vec<(DocumentName, Option<DocumentContent>)>,
        until: Option<Instant>,
    ) -> Result<Vec<Document>, ShardError> {
        let now = self.inner.clock.now();
        let writes = {
            let ledger = self.ledger();
            let version = ledger.next_version(now);
            let documents = contents.into_iter().zip(version..);
            let write = documents.map(|((name, content), version)| {
                let expected = ledger.copies[home.index()].version(&name);
                (Document { name, version, update_time: now, content }, expected)
            });
            write.collect::<Vec<_>>()
        };
        if writes.is_empty() {
            return Ok(Vec::new());
        }
        let written = self.write_batch(home, writes, until).await?;
        self.merge(&mut self.ledger(), &written);
        Ok(written)
    }

    /// Writes to the other shards; returns those that failed.
    async fn write_others(&self, home: &Shard) -> Vec<String> {
        let others = self.inner.shards.all().iter().filter(|shard| shard.index() != home.index());
        let failed = join_all(others.map(|shard| async move {
            self.exchange(shard).await.err().map(|_| shard.name().to_string())
        }));
        failed.await.into_iter().flatten().collect()
    }
}

pub(super) fn contention() -> store::Error {
    store::Error::Contention("the policy changed during each attempt".into())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::clock::Clock;
    use crate::domain::{TopicPattern, TopicPolicy, TopicSettings};
    use crate::scheduler::tests::test_ring::TestRing;

    /// Changes by each replica.
    const CHANGES: usize = 60;

    /// Decides the last policy with one more letter in its description.
    fn one_letter_more(
        name: &TopicPattern,
        view: &DocumentView,
        now: Time,
    ) -> Result<Option<TopicPolicy>, Infallible> {
        let last = view.policy(name).map(|last| (**last).clone());
        let mut policy = last.unwrap_or_else(|| TopicPolicy::new(name.clone(), now));
        policy.settings.get_or_insert_with(TopicSettings::default).description.push('x');
        Ok(Some(policy))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_changes_at_once_none_is_lost() {
        let ring = TestRing::new(2);
        let (stop, name) = (CancellationToken::new(), TopicPattern::parse("orders").unwrap());
        let replicas: Vec<Documents> = (0..3)
            .map(|_| Documents::new(ring.scheduler.shards().clone(), Clock::system()))
            .collect();
        replicas.iter().for_each(|replica| drop(replica.follow(&stop)));
        let changes = replicas.iter().map(|replica| {
            let (replica, name) = (replica.clone(), name.clone());
            tokio::spawn(async move {
                for _ in 0..CHANGES {
                    let decide = |view: &DocumentView, now| one_letter_more(&name, view, now);
                    while let Err(error) = replica.change_policy(&name, None, None, decide).await {
                        assert!(
                            matches!(&error, DocumentChangeError::Shard(error)
                                if matches!(error.error, store::Error::Contention(_))),
                            "{error}"
                        );
                    }
                }
            })
        });
        join_all(changes).await.into_iter().for_each(|done| done.unwrap());
        let document = DocumentName::TopicPolicy(name.clone());
        replicas[0].refresh::<Infallible>(document).await.unwrap();
        let view = replicas[0].view();
        let policy = view.policy(&name).unwrap();
        let letters = policy.settings.as_ref().unwrap().description.len();
        assert_eq!(letters, replicas.len() * CHANGES, "{policy:?}");
        stop.cancel();
    }
}

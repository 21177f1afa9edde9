//! Exchanges documents with each shard: reads what changed there, and writes what is newer elsewhere.

use std::time::Duration;

use tokio::sync::broadcast;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::{Backoff, BackoffRange};
use crate::domain::{Document, DocumentName, PolicyEffect, TopicName, TopicPattern, limit};
use crate::shards::{self, Op, Shard};
use crate::store::{
    DocumentWrite, EventKind, GroupSetting, ShardEvent, StoredDocument, TopicEffect, codec,
};

use super::Documents;

/// Interval in which a shard that others use is read without an event: events may get lost.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// First and longest pause after a failed exchange.
const RETRY_DELAYS: BackoffRange =
    BackoffRange { min: Duration::from_millis(50), max: Duration::from_secs(1) };
/// Number of rounds of an exchange: a shard that another replica writes to has news after each.
const ROUNDS_MAX: usize = 4;
/// Number of documents in one write, and of the settings of groups in it unless one document has more.
pub(super) const WRITE_MAX: usize = 64;
const WRITE_SETTINGS_MAX: usize = 1_000;
/// Longest pause after a full batch.
const PACE_MAX: Duration = Duration::from_millis(50);

// === impl Documents ===

impl Documents {
    /// Reads the documents of all shards that answer, once: to be called before the server serves.
    pub async fn read_all(&self) {
        let read = |shard| async move {
            if let Err(error) = self.exchange(shard).await {
                tracing::debug!(shard = %shard.name(), %error, "documents not read yet");
            }
        };
        futures::future::join_all(self.inner.shards.all().iter().map(read)).await;
    }

    /// Starts to exchange documents with all shards, until `stop`.
    pub fn follow(&self, stop: &CancellationToken) -> TaskTracker {
        let tasks = TaskTracker::new();
        for shard in self.inner.shards.all() {
            let (documents, shard, stop) = (self.clone(), shard.clone(), stop.clone());
            tasks.spawn(
                async move { stop.run_until_cancelled(documents.follow_shard(shard)).await },
            );
        }
        let (documents, stop) = (self.clone(), stop.clone());
        tasks.spawn(async move { stop.run_until_cancelled(documents.keep_tidy()).await });
        tasks.close();
        tasks
    }

    async fn follow_shard(self, shard: Shard) {
        let mut events = shard.events(EventKind::Documents);
        let (mut news, mut pauses) = (self.watch(), Backoff::new(RETRY_DELAYS));
        loop {
            // What was known before the exchange is written by it.
            news.mark_unchanged();
            match self.exchange(&shard).await {
                Ok(()) => {
                    pauses.reset();
                    tokio::select! {
                        are_missed = changed(&mut events) => if are_missed {
                            // Another Redis may answer now, which has lost the last changes.
                            let _gate = self.inner.gates[shard.index()].lock().await;
                            self.ledger().reset(shard.index(), &self.view());
                        },
                        _ = news.changed() => {}
                        () = tokio::time::sleep(READ_INTERVAL), if shard.is_shared() => {}
                    }
                }
                Err(error) => {
                    tracing::debug!(shard = %shard.name(), %error, "documents not exchanged");
                    shard.pause_before_retry(pauses.next_delay()).await;
                }
            }
        }
    }

    /// Reads what has changed on the shard, and writes what is newer here, until both have the same.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) async fn exchange(&self, shard: &Shard) -> shards::Result<()> {
        let _gate = self.inner.gates[shard.index()].lock().await;
        self.exchange_alone(shard).await
    }

    /// Exchanges documents with a shard whose gate the caller holds.
    pub(super) async fn exchange_alone(&self, shard: &Shard) -> shards::Result<()> {
        for _ in 0..ROUNDS_MAX {
            self.read(shard).await?;
            if !self.write(shard).await? {
                break;
            }
        }
        Ok(())
    }

    async fn read(&self, shard: &Shard) -> shards::Result<()> {
        loop {
            let after = self.ledger().copies[shard.index()].last_sequence;
            let page = shard
                .call(Op::Documents, |store| store.documents(after, limit::CALL_JOBS_MAX))
                .await?;
            let read = page.documents.iter().map(|stored| decode(shard, stored)).collect();
            let (mut ledger, now) = (self.ledger(), self.inner.clock.now());
            if let Some(read) = ledger.take(shard.index(), &page, read, &self.view(), now) {
                self.merge(&mut ledger, &read);
                if ledger.is_read(shard.index(), &page) {
                    return Ok(());
                }
            }
        }
    }

    /// Writes what is newer here than on the shard; returns whether there was anything to write.
    async fn write(&self, shard: &Shard) -> shards::Result<bool> {
        let mut are_any = false;
        loop {
            let writes = self.ledger().writes(shard.index(), &self.view(), WRITE_MAX);
            if writes.is_empty() {
                return Ok(are_any);
            }
            are_any = true;
            let count = writes.len();
            let written = self.write_batch(shard, writes, None).await?;
            if written.len() < count {
                // The shard has others, which are read first.
                return Ok(true);
            }
        }
    }

    /// Writes documents to a shard in place of the versions that it has; returns those that were written. The caller holds
    /// the gate of the shard.
    ///
    /// # Errors
    /// Errors of the store; all that were not written are written by the next exchange, if they are known by then.
    pub(super) async fn write_batch(
        &self,
        shard: &Shard,
        writes: Vec<(Document, u64)>,
        until: Option<Instant>,
    ) -> shards::Result<Vec<Document>> {
        let mut written = Vec::with_capacity(writes.len());
        let (documents, mut rest): (Vec<_>, Vec<_>) = writes
            .into_iter()
            .map(|(document, expected)| (document.clone(), to_write(&document, expected)))
            .unzip();
        let mut documents = documents.as_slice();
        while !documents.is_empty() {
            let mut settings = 0;
            let fits = rest.iter().take_while(|write| {
                settings += write.effect.as_ref().map_or(0, |effect| effect.groups.len());
                settings <= WRITE_SETTINGS_MAX
            });
            let behind = rest.split_off(fits.count().max(1));
            let (part, others) = documents.split_at(rest.len());
            let begun = Instant::now();
            let writes = std::mem::replace(&mut rest, behind);
            let results =
                shard.call(Op::WriteDocuments, |store| store.write_documents(writes, until)).await;
            let results = results.inspect_err(|_| {
                self.ledger().wrote(shard.index(), documents, &[]);
            })?;
            written.extend(self.ledger().wrote(shard.index(), part, &results));
            documents = others;
            if written.len() == WRITE_MAX {
                // Of many batches: other calls of the shard have two thirds of its time.
                tokio::time::sleep((2 * begun.elapsed()).min(PACE_MAX)).await;
            }
        }
        Ok(written)
    }
}

/// Waits for the next event; returns whether some were missed.
async fn changed(events: &mut broadcast::Receiver<ShardEvent>) -> bool {
    match events.recv().await {
        Ok(event) => event == ShardEvent::EventsMissed,
        Err(broadcast::error::RecvError::Lagged(_)) => true,
        Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
    }
}

/// Returns the write of a document in place of a version.
pub(super) fn to_write(document: &Document, expected: u64) -> DocumentWrite {
    let effect = match &document.name {
        DocumentName::TopicPolicy(TopicPattern::Exact(topic)) => Some(effect_of(topic, document)),
        DocumentName::TopicPolicy(TopicPattern::Prefix(_)) | DocumentName::TopicFile => None,
    };
    DocumentWrite {
        name: document.name.clone(),
        expected,
        version: document.version,
        is_live: document.is_live(),
        body: codec::encode_document(document).into(),
        effect,
    }
}

/// Returns the effect of the policy of a topic, which may be deleted.
fn effect_of(topic: &TopicName, document: &Document) -> TopicEffect {
    let policy = document.topic_policy();
    let settings = policy.and_then(|policy| policy.settings.as_ref());
    let setting = |(group, (weight, paused))| GroupSetting { group, weight, paused };
    TopicEffect {
        topic: topic.clone(),
        policy: policy.map_or(PolicyEffect::Forget, |policy| policy.effect()),
        limits_bytes: settings.map(|settings| settings.max_stored_bytes.is_some()),
        groups: policy.iter().flat_map(|policy| policy.groups()).map(setting).collect(),
    }
}

/// Decodes a stored document. Of one that cannot be read the name and the version are returned; a newer one replaces it.
fn decode(shard: &Shard, stored: &StoredDocument) -> Result<Document, (DocumentName, u64)> {
    let StoredDocument { name, version, body } = stored;
    codec::decode_document(name.clone(), *version, body).map_err(|error| {
        tracing::error!(shard = %shard.name(), document = %name, %error, "document is damaged; ignored");
        (name.clone(), *version)
    })
}

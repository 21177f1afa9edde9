//! Changes of policies by calls, and the room for their settings.

use futures::future::join_all;
use tokio::time::Instant;

use crate::domain::{
    Document, DocumentContent, DocumentName, Time, TopicName, TopicPattern, TopicPolicy, limit,
};
use crate::shards::{Op, Shard, ShardError};

use super::change::{DECISIONS_MAX, contention};
use super::copies::to_write;
use super::{DocumentChangeError, DocumentView, Documents};

/// Number of topics and patterns that can have settings.
#[derive(Clone, Debug)]
pub struct SettingsRoom {
    /// In all.
    pub max: usize,
    /// Number of topics with each of these prefixes to which calls may give settings.
    pub namespaces: Vec<(String, u64)>,
}

/// Place of a policy that gets settings, until it is known.
struct SettingsPlace<'p> {
    documents: &'p Documents,
    name: &'p TopicPattern,
}

// === impl SettingsRoom ===

impl Default for SettingsRoom {
    fn default() -> SettingsRoom {
        SettingsRoom { max: limit::POLICIES_MAX, namespaces: Vec::new() }
    }
}

// === impl SettingsPlace ===

impl Drop for SettingsPlace<'_> {
    fn drop(&mut self) {
        let reserved = &mut self.documents.ledger().reserved;
        let place = reserved.iter().position(|name| name == self.name);
        place.map(|place| reserved.swap_remove(place));
    }
}

// === impl Documents ===

impl Documents {
    /// Changes the policy of a name: `decide` returns the new one from what is known, `None` to delete it and to forget its
    /// topic, or why it is not changed. It may be called several times. The version and the time of the change are set here.
    /// `room`: for how many policies with settings there is room; `None`: for any number. Nothing is written after `until`.
    /// Returns the shards that have not taken the change yet.
    ///
    /// # Errors
    /// [`DocumentChangeError`]; then nothing was changed, unless the outcome is unknown.
    pub async fn change_policy<E>(
        &self,
        name: &TopicPattern,
        room: Option<&SettingsRoom>,
        until: Option<Instant>,
        decide: impl Fn(&DocumentView, Time) -> Result<Option<TopicPolicy>, E>,
    ) -> Result<Vec<String>, DocumentChangeError<E>> {
        self.change(&DocumentName::TopicPolicy(name.clone()), until, |view, now| {
            let policy = decide(view, now).map_err(DocumentChangeError::Refused)?;
            let had_settings = view.policy(name).is_some_and(|last| last.has_settings());
            let has_settings = policy.as_ref().is_some_and(TopicPolicy::has_settings);
            let place = match room.filter(|_| has_settings && !had_settings) {
                Some(room) => Some(self.take_place(name, room)?),
                None => None,
            };
            Ok((policy.map(DocumentContent::from), place))
        })
        .await
    }

    /// Takes a place of those for policies with settings.
    fn take_place<'p, E>(
        &'p self,
        name: &'p TopicPattern,
        room: &SettingsRoom,
    ) -> Result<SettingsPlace<'p>, DocumentChangeError<E>> {
        // With the places that are taken: calls at once do not pass the number together.
        let (mut ledger, view) = (self.ledger(), self.view());
        let is_full = view.settings_count() + ledger.reserved.len() >= room.max;
        if is_full || ledger.empty_count() >= limit::DOCUMENTS_FORGOTTEN_MAX {
            return Err(DocumentChangeError::NoRoom(None));
        }
        let topic = name.to_string();
        for (prefix, max) in room.namespaces.iter().filter(|(prefix, _)| topic.starts_with(prefix))
        {
            let reserved =
                ledger.reserved.iter().filter(|name| name.to_string().starts_with(prefix));
            if (view.settings_by_calls(prefix) + reserved.count()) as u64 >= *max {
                return Err(DocumentChangeError::NoRoom(Some(prefix.clone())));
            }
        }
        ledger.reserved.push(name.clone());
        Ok(SettingsPlace { documents: self, name })
    }

    /// Forgets a topic without a policy: what a deletion does to it on each shard. If it gets a policy meanwhile, it is there
    /// anew.
    ///
    /// # Errors
    /// Error of the first shard that has not forgotten it. A repeat goes on.
    pub async fn forget_topic(
        &self,
        topic: &TopicName,
        until: Option<Instant>,
    ) -> Result<(), ShardError> {
        let name = DocumentName::TopicPolicy(TopicPattern::Exact(topic.clone()));
        let deletion = &Document { name, version: 0, update_time: Time(0), content: None };
        let forget = |shard: &Shard| {
            let shard = shard.clone();
            async move {
                let _gate = self.inner.gates[shard.index()].lock().await;
                for _ in 0..DECISIONS_MAX {
                    let expected = self.ledger().copies[shard.index()].version(&deletion.name);
                    let forget = vec![to_write(deletion, expected)];
                    let results = shard
                        .call(Op::WriteDocuments, |store| store.write_documents(forget, until))
                        .await?;
                    if results.iter().all(|result| result.is_written) {
                        return Ok(());
                    }
                    // Another server has written or removed a document of this name since it was read.
                    self.exchange_alone(&shard).await?;
                    if self.view().of_topic(topic).is_some_and(|policy| policy.is_live()) {
                        return Ok(());
                    }
                }
                Err(ShardError::new(shard.name(), contention()))
            }
        };
        let forgotten = join_all(self.inner.shards.all().iter().map(forget)).await;
        forgotten.into_iter().collect()
    }
}

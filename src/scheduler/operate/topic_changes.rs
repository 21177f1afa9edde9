//! Changes of topics by operators: settings, pauses, removal.

use tokio::time::Instant;

use crate::documents::{DocumentChangeError, DocumentView, SettingsRoom};
use crate::domain::{
    Document, DocumentName, GroupName, PolicySource, ShardName, State, Time, TopicName,
    TopicPattern, TopicPause, TopicPolicy, TopicSettings, limit,
};
use crate::scheduler::Core;
use crate::shards::ShardError;

use super::Operator;
use super::admin::TopicRow;
use super::purge::PurgeTopic;

/// Reason why a topic was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopicRefusal {
    /// There is such a topic.
    #[error("the topic exists")]
    Exists,
    /// There is no such topic.
    #[error("there is no such topic")]
    NotFound,
    /// The topic has changed since the caller has read it.
    #[error("the topic has changed; its etag is {current}")]
    EtagMismatch {
        /// Etag that it has now.
        current: String,
    },
    /// The settings of the topic come from a file.
    #[error("the settings come from {name} in a file of revision {revision}")]
    ReadOnly {
        /// Topic or pattern whose table in the file has the settings.
        name: TopicPattern,
        /// Revision of the file.
        revision: u64,
    },
    /// The topic has jobs.
    #[error("the topic has {jobs} jobs")]
    NotEmpty {
        /// Number of them: waiting, running and dead ones.
        jobs: u64,
    },
    /// Too many groups of the topic are paused.
    #[error("more than {} groups are paused", limit::GROUP_SETTINGS_MAX)]
    TooManyGroups,
}

/// Error of a change.
pub type TopicChangeError = DocumentChangeError<TopicRefusal>;

/// Result of a change: the shards that have not taken it yet.
pub type TopicChange = Result<Vec<String>, TopicChangeError>;

/// Returns the etag of a topic with this policy: it differs after each change.
#[must_use]
pub fn etag(policy: Option<&Document>) -> String {
    match policy.filter(|policy| policy.is_live()) {
        None => "0".to_owned(),
        Some(policy) => format!("{:x}.{:x}", policy.version, policy.update_time.0),
    }
}

/// Checks that the settings of a policy do not come from a file.
fn read_only(view: &DocumentView, policy: Option<&TopicPolicy>) -> Result<(), TopicRefusal> {
    match policy.and_then(|policy| Some((policy, view.file_revision(policy)?))) {
        Some((policy, revision)) => {
            Err(TopicRefusal::ReadOnly { name: policy.name.clone(), revision })
        }
        None => Ok(()),
    }
}

// === impl Operator ===

impl Operator {
    /// Creates a topic with these settings. `expected`: its etag, if not empty, which is that of no topic. Nothing is written
    /// after `until`.
    ///
    /// # Errors
    /// [`TopicChangeError`].
    pub async fn create_topic(
        &self,
        name: TopicName,
        settings: TopicSettings,
        expected: String,
        room: SettingsRoom,
        until: Option<Instant>,
    ) -> TopicChange {
        if self.topic(name.clone()).await?.is_some() {
            return Err(DocumentChangeError::Refused(TopicRefusal::Exists));
        }
        let pattern = TopicPattern::Exact(name.clone());
        self.change_policy(pattern.clone(), Some(room), until, move |view, now| {
            if live(view, &name).is_some() {
                return Err(TopicRefusal::Exists);
            }
            check_etag(view, &name, &expected)?;
            // Without any setting it hides no pattern.
            if settings != TopicSettings::default() {
                read_only(view, view.in_force(&name))?;
            }
            let settings = Some(settings.clone());
            Ok(Some(TopicPolicy { settings, ..TopicPolicy::new(pattern.clone(), now) }))
        })
        .await
    }

    /// Changes the settings of a topic by `update`. `etag`: the one that it must have, if not empty. `allow_missing`:
    /// creates it if there is no such topic. Nothing is written after `until`.
    ///
    /// # Errors
    /// [`TopicChangeError`].
    pub async fn update_topic(
        &self,
        name: TopicName,
        update: impl Fn(&mut TopicSettings) + Send + Sync + 'static,
        (expected, allow_missing): (String, bool),
        room: SettingsRoom,
        until: Option<Instant>,
    ) -> TopicChange {
        let is_there = self.topic(name.clone()).await?.is_some();
        let pattern = TopicPattern::Exact(name.clone());
        self.change_policy(pattern.clone(), Some(room), until, move |view, now| {
            let last = live(view, &name);
            if last.is_none() && !is_there && !allow_missing {
                return Err(TopicRefusal::NotFound);
            }
            read_only(view, view.in_force(&name))?;
            check_etag(view, &name, &expected)?;
            let is_new = last.is_none() && !is_there;
            let mut policy =
                last.cloned().unwrap_or_else(|| TopicPolicy::new(pattern.clone(), now));
            let mut settings = policy.settings.take().unwrap_or_default();
            update(&mut settings);
            // A topic that sets nothing needs no policy, unless the call creates it.
            policy.settings =
                Some(settings).filter(|all| is_new || *all != TopicSettings::default());
            policy.source = PolicySource::Rpc;
            Ok(Some(policy))
        })
        .await
    }

    /// Pauses a topic, or resumes it with `None`. Nothing is written after `until`.
    ///
    /// # Errors
    /// [`TopicChangeError`].
    pub async fn set_topic_pause(
        &self,
        name: TopicName,
        pause: Option<TopicPause>,
        until: Option<Instant>,
    ) -> TopicChange {
        let exists = self.topic(name.clone()).await?.is_some();
        let pattern = TopicPattern::Exact(name.clone());
        self.change_policy(pattern.clone(), None, until, move |view, now| {
            let last = live(view, &name);
            if last.is_none() && !exists {
                return Err(TopicRefusal::NotFound);
            }
            let policy = last.cloned().unwrap_or_else(|| TopicPolicy::new(pattern.clone(), now));
            Ok(Some(TopicPolicy { pause: pause.clone(), ..policy }))
        })
        .await
    }

    /// Pauses a group of a topic with a reason, or resumes it with `None`. `group`: `None` for the jobs without one.
    /// Nothing is written after `until`.
    ///
    /// # Errors
    /// [`TopicChangeError`].
    pub async fn set_group_pause(
        &self,
        topic: TopicName,
        group: Option<GroupName>,
        note: Option<String>,
        until: Option<Instant>,
    ) -> TopicChange {
        let exists = self.topic(topic.clone()).await?.is_some();
        let pattern = TopicPattern::Exact(topic.clone());
        self.change_policy(pattern.clone(), None, until, move |view, now| {
            let last = live(view, &topic);
            if last.is_none() && !exists {
                return Err(TopicRefusal::NotFound);
            }
            let mut policy =
                last.cloned().unwrap_or_else(|| TopicPolicy::new(pattern.clone(), now));
            match &note {
                Some(note) => drop(policy.paused_groups.insert(group.clone(), note.clone())),
                None => drop(policy.paused_groups.remove(&group)),
            }
            // Groups with a weight take no place of these.
            match policy.paused_groups.len() {
                0..=limit::GROUP_SETTINGS_MAX => Ok(Some(policy)),
                _ if note.is_none() => Ok(Some(policy)),
                _ => Err(TopicRefusal::TooManyGroups),
            }
        })
        .await
    }

    /// Removes a topic. `etag`: the one that it must have, if not empty. `force`: with its jobs; otherwise it must have
    /// none. Jobs that come meanwhile are kept, and begin the topic anew. Returns the shards that have not taken the change
    /// yet. Nothing is written after `until`.
    ///
    /// # Errors
    /// [`TopicChangeError`]; if a job was removed before that, it is no refusal.
    pub async fn delete_topic(
        &self,
        name: TopicName,
        (expected, force): (String, bool),
        until: Option<Instant>,
    ) -> Result<Vec<String>, TopicChangeError> {
        let pattern = TopicPattern::Exact(name.clone());
        let refreshed = self.inner.documents.refresh(DocumentName::TopicPolicy(pattern.clone()));
        let (row, refreshed) = tokio::join!(self.topic(name.clone()), refreshed);
        let row = row?.ok_or(DocumentChangeError::Refused(TopicRefusal::NotFound))?;
        refreshed?;
        if let Some(Ok(shard)) = row.unreachable.first().map(|shard| ShardName::try_new(shard)) {
            let why = "it may have jobs of the topic, and does not answer";
            return Err(ShardError::unavailable(&shard, why).into());
        }
        let may_delete = move |view: &DocumentView, name: &TopicName| {
            read_only(view, live(view, name))?;
            check_etag(view, name, &expected)
        };
        may_delete(&self.inner.documents.view(), &name).map_err(DocumentChangeError::Refused)?;
        let jobs = jobs_of(&row);
        if force {
            let (topic, states) = (name.clone(), State::ALL.into());
            let purge = PurgeTopic { topic, states, group: None, dry_run: false };
            let purged = self.purge(purge, until).await?;
            if let Some(Ok(shard)) = purged.unreachable.first().map(|name| ShardName::try_new(name))
            {
                let why = "it still has jobs of the topic, whose settings stay; call again";
                return Err(ShardError::unavailable(&shard, why).into());
            }
        } else if jobs > 0 {
            return Err(DocumentChangeError::Refused(TopicRefusal::NotEmpty { jobs }));
        }
        if live(&self.inner.documents.view(), &name).is_none() {
            self.inner.documents.forget_topic(&name, until).await?;
            return Ok(Vec::new());
        }
        self.change_policy(pattern.clone(), None, until, move |view, _| {
            // Jobs that are gone are not for nothing: whatever came since is overwritten.
            if !force {
                may_delete(view, &name)?;
            }
            Ok(None)
        })
        .await
    }

    async fn change_policy(
        &self,
        name: TopicPattern,
        room: Option<SettingsRoom>,
        until: Option<Instant>,
        decide: impl Fn(&DocumentView, Time) -> Result<Option<TopicPolicy>, TopicRefusal>
        + Send
        + Sync
        + 'static,
    ) -> TopicChange {
        let documents = self.inner.documents.clone();
        Core::run_to_completion(async move {
            documents.change_policy(&name, room.as_ref(), until, decide).await
        })
        .await
    }
}

/// Returns the policy of the topic, if anything is left of it.
fn live<'v>(view: &'v DocumentView, topic: &TopicName) -> Option<&'v TopicPolicy> {
    view.of_topic(topic).map(|policy| &**policy).filter(|policy| policy.is_live())
}

/// Checks the etag, if one is given.
fn check_etag(view: &DocumentView, topic: &TopicName, expected: &str) -> Result<(), TopicRefusal> {
    let current = etag(view.document_of(topic));
    if expected.is_empty() || expected == current {
        Ok(())
    } else {
        Err(TopicRefusal::EtagMismatch { current })
    }
}

fn jobs_of(row: &TopicRow) -> u64 {
    let stats = &row.stats;
    stats.scheduled + stats.ready + stats.running + stats.backoff + stats.dead
}

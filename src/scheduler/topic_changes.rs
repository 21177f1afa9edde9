//! Changes of topics by operators: settings, pauses, removal.

use tokio::time::Instant;

use crate::domain::{
    GroupName, PolicySource, ShardName, State, Time, TopicName, TopicPattern, TopicPause,
    TopicPolicy, TopicSettings, limit,
};
use crate::policies::{ChangedPolicy, PolicyChangeError};
use crate::shards::ShardError;

use super::{PurgeTopic, Scheduler, TopicRow};

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
    #[error("the settings come from a file of revision {revision}")]
    ReadOnly {
        /// Revision of the file.
        revision: u64,
    },
    /// The topic has jobs.
    #[error("the topic has {jobs} jobs")]
    NotEmpty {
        /// Number of them: waiting, running and dead ones.
        jobs: u64,
    },
    /// Too many groups of the topic have a weight or are paused.
    #[error("more than {} groups have a weight or are paused", limit::GROUP_SETTINGS_MAX)]
    TooManyGroups,
    /// There are too many policies.
    #[error("there are {} policies", limit::POLICIES_MAX)]
    TooMany,
}

/// Error of a change.
pub type TopicChangeError = PolicyChangeError<TopicRefusal>;

/// Result of a change.
pub type TopicChange = Result<ChangedPolicy, TopicChangeError>;

/// Returns the etag of a topic with this policy: it differs after each change.
#[must_use]
pub fn etag(policy: Option<&TopicPolicy>) -> String {
    match policy.filter(|policy| !policy.is_deleted) {
        None => "0".to_owned(),
        Some(policy) => format!("{:x}.{:x}", policy.version, policy.update_time.0),
    }
}

// === impl Scheduler ===

impl Scheduler {
    /// Creates a topic with these settings. Nothing is written after `until`.
    ///
    /// # Errors
    /// [`TopicChangeError`].
    pub async fn create_topic(
        &self,
        name: TopicName,
        settings: TopicSettings,
        until: Option<Instant>,
    ) -> TopicChange {
        if self.topic(name.clone()).await?.is_some() {
            return Err(PolicyChangeError::Refused(TopicRefusal::Exists));
        }
        let pattern = TopicPattern::Exact(name);
        self.change_policy(pattern.clone(), until, move |last, now| match live(last) {
            Some(_) => Err(TopicRefusal::Exists),
            None => {
                let settings = Some(settings.clone());
                Ok(TopicPolicy { settings, ..TopicPolicy::new(pattern.clone(), now) })
            }
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
        until: Option<Instant>,
    ) -> TopicChange {
        let exists = allow_missing || self.topic(name.clone()).await?.is_some();
        let pattern = TopicPattern::Exact(name);
        self.change_policy(pattern.clone(), until, move |last, now| {
            let last = live(last);
            if last.is_none() && !exists {
                return Err(TopicRefusal::NotFound);
            }
            check(last, &expected)?;
            let mut policy =
                last.cloned().unwrap_or_else(|| TopicPolicy::new(pattern.clone(), now));
            update(policy.settings.get_or_insert_default());
            policy.source = PolicySource::Rpc;
            check_groups(policy)
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
        let pattern = TopicPattern::Exact(name);
        self.change_policy(pattern.clone(), until, move |last, now| {
            let last = live(last);
            if last.is_none() && !exists {
                return Err(TopicRefusal::NotFound);
            }
            let policy = last.cloned().unwrap_or_else(|| TopicPolicy::new(pattern.clone(), now));
            Ok(TopicPolicy { pause: pause.clone(), ..policy })
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
        let pattern = TopicPattern::Exact(topic);
        self.change_policy(pattern.clone(), until, move |last, now| {
            let last = live(last);
            if last.is_none() && !exists {
                return Err(TopicRefusal::NotFound);
            }
            let mut policy =
                last.cloned().unwrap_or_else(|| TopicPolicy::new(pattern.clone(), now));
            match &note {
                Some(note) => drop(policy.paused_groups.insert(group.clone(), note.clone())),
                None => {
                    policy.paused_groups.remove(&group);
                    return Ok(policy);
                }
            }
            check_groups(policy)
        })
        .await
    }

    /// Removes a topic. `etag`: the one that it must have, if not empty. `force`: with its jobs; otherwise it must have
    /// none. Nothing is written after `until`.
    ///
    /// # Errors
    /// [`TopicChangeError`].
    pub async fn delete_topic(
        &self,
        name: TopicName,
        (expected, force): (String, bool),
        until: Option<Instant>,
    ) -> TopicChange {
        if force {
            self.purge_all(&name, &expected, until).await?;
        }
        let row = self.topic(name.clone()).await?;
        let row = row.ok_or(PolicyChangeError::Refused(TopicRefusal::NotFound))?;
        if let Some(Ok(shard)) = row.unreachable.first().map(|shard| ShardName::try_new(shard)) {
            let why = "it may have jobs of the topic, and does not answer";
            return Err(ShardError::unavailable(&shard, why).into());
        }
        let jobs = jobs_of(&row);
        if jobs > 0 {
            return Err(PolicyChangeError::Refused(TopicRefusal::NotEmpty { jobs }));
        }
        let pattern = TopicPattern::Exact(name);
        self.change_policy(pattern.clone(), until, move |last, now| {
            let last = live(last);
            check(last, &expected)?;
            let create_time = last.map_or(now, |last| last.create_time);
            let is_deleted = true;
            Ok(TopicPolicy { is_deleted, create_time, ..TopicPolicy::new(pattern.clone(), now) })
        })
        .await
    }

    /// Deletes all jobs of a topic, if its etag is the expected one.
    async fn purge_all(
        &self,
        name: &TopicName,
        expected: &str,
        until: Option<Instant>,
    ) -> Result<(), TopicChangeError> {
        let pattern = TopicPattern::Exact(name.clone());
        self.inner.policies.refresh(&pattern).await?;
        let view = self.inner.policies.view();
        let policy = view.of_topic(name).map(|policy| &**policy);
        check(live(policy), expected).map_err(PolicyChangeError::Refused)?;
        let purge = PurgeTopic {
            topic: name.clone(),
            states: State::ALL.into(),
            group: None,
            dry_run: false,
        };
        self.purge(purge, until).await?;
        Ok(())
    }

    async fn change_policy(
        &self,
        name: TopicPattern,
        until: Option<Instant>,
        decide: impl Fn(Option<&TopicPolicy>, Time) -> Result<TopicPolicy, TopicRefusal>
        + Send
        + Sync
        + 'static,
    ) -> TopicChange {
        let policies = self.inner.policies.clone();
        Scheduler::run_to_completion(async move {
            let view = policies.view();
            if view.policy(&name).is_none() && view.all().count() >= limit::POLICIES_MAX {
                return Err(PolicyChangeError::Refused(TopicRefusal::TooMany));
            }
            policies.change(&name, until, decide).await
        })
        .await
    }
}

/// Returns the policy, unless it only records a deletion.
fn live(policy: Option<&TopicPolicy>) -> Option<&TopicPolicy> {
    policy.filter(|policy| !policy.is_deleted)
}

/// Checks that calls may change the settings, and the etag, if one is given.
fn check(policy: Option<&TopicPolicy>, expected: &str) -> Result<(), TopicRefusal> {
    if let Some(TopicPolicy {
        source: PolicySource::File { revision }, settings: Some(_), ..
    }) = policy
    {
        return Err(TopicRefusal::ReadOnly { revision: *revision });
    }
    let current = etag(policy);
    if expected.is_empty() || expected == current {
        Ok(())
    } else {
        Err(TopicRefusal::EtagMismatch { current })
    }
}

/// Checks the number of groups with settings.
fn check_groups(policy: TopicPolicy) -> Result<TopicPolicy, TopicRefusal> {
    match policy.groups().len() {
        0..=limit::GROUP_SETTINGS_MAX => Ok(policy),
        _ => Err(TopicRefusal::TooManyGroups),
    }
}

fn jobs_of(row: &TopicRow) -> u64 {
    let stats = &row.stats;
    stats.scheduled + stats.ready + stats.running + stats.backoff + stats.dead
}

//! `TopicService`: topics and their statistics.

use tonic::{Request, Response, Status};

use crate::auth::{Authenticator, QuotaKind};
use crate::contract::group::{GroupsPage, list_groups, to_group, to_groups_token};
use crate::contract::list::TopicsPlace;
use crate::contract::number::to_int64;
use crate::contract::topic::{self, StreamCounts, to_topic, to_topic_stats, to_topic_summary};
use crate::contract::topic_policy::TopicDeletion;
use crate::contract::{list, purge, topic_policy};
use crate::dispatch::Dispatcher;
use crate::documents::{DocumentChangeError, SettingsRoom};
use crate::domain::{CrashTopic, TopicName, TopicPattern, TopicSettings};
use crate::pb;
use crate::pb::topic_service_server::TopicService;
use crate::rpc::Rpc;
use crate::scheduler::{GroupRows, Operator, TopicChange, TopicRow};

use super::access::CallAccess;
use super::layers::write_deadline;
use super::status::RpcError;

/// Maximum number of reads of one ListTopics; the next page continues. A caller without many patterns needs one.
const LIST_READS_MAX: usize = 32;

/// Handler of `TopicService`.
pub(super) struct TopicsHandler {
    operator: Operator,
    dispatcher: Dispatcher,
    authenticator: Authenticator,
}

// === impl TopicsHandler ===

impl TopicsHandler {
    /// Creates the handler on top of these parts.
    pub(super) fn new(
        operator: Operator,
        dispatcher: Dispatcher,
        authenticator: Authenticator,
    ) -> TopicsHandler {
        TopicsHandler { operator, dispatcher, authenticator }
    }

    /// Returns the room for the settings of a topic.
    fn room(&self, topic: &TopicName) -> SettingsRoom {
        let namespaces = self.authenticator.namespaces();
        let namespaces = namespaces.map(|namespaces| namespaces.topic_settings(topic));
        SettingsRoom { namespaces: namespaces.unwrap_or_default(), ..SettingsRoom::default() }
    }

    async fn row(&self, access: &CallAccess, name: TopicName) -> Result<TopicRow, Status> {
        access.touch_existing(&name)?;
        let row = self.operator.topic(name.clone()).await.map_err(RpcError::of_read)?;
        row.ok_or_else(|| RpcError::topic_not_found(&name).into())
    }

    /// Returns the topic after a change, and the shards that have not taken the change yet.
    async fn changed(
        &self,
        access: &CallAccess,
        name: &TopicName,
        changed: TopicChange,
    ) -> Result<(pb::Topic, Vec<String>), Status> {
        let missing = changed.map_err(|error| {
            if let (DocumentChangeError::NoRoom(Some(_)), Some(meter)) =
                (&error, access.caller().meter())
            {
                meter.count_refusal(QuotaKind::TopicSettings);
            }
            RpcError::of_topic(error, name)
        })?;
        let (view, now) = (self.operator.documents().view(), self.operator.clock().now());
        // The topic may be older than its policy. The change is done, whether or not that can be read.
        let row = self.operator.topic(name.clone()).await.ok().flatten();
        let created = view.of_topic(name).map_or(now, |policy| policy.create_time);
        let created = row.map_or(created, |row| row.topic.create_time);
        let topic = topic_policy::to_topic(name, created, &view, now);
        Ok((topic, missing))
    }

    /// Reads the topics of a page that may be shown, and the place of the next page. Only those are read: the patterns of
    /// a caller's rights are read one by one, some of them in one call.
    async fn shown_rows(
        &self,
        access: &CallAccess,
        page: list::TopicsPage,
    ) -> Result<(Vec<TopicRow>, Option<TopicsPlace>), Status> {
        let list::TopicsPage { prefix, place, limit } = page;
        let mut parts = access.shown_part(vec![TopicPattern::Prefix(prefix)]);
        parts.retain(|part| !place.as_ref().is_some_and(|place| place.is_behind(part)));
        parts.sort_unstable_by(|a, b| a.text().cmp(b.text()));
        let (mut rows, mut reads) = (Vec::new(), 0);
        let mut parts = parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            if reads == LIST_READS_MAX {
                return Ok((rows, Some(TopicsPlace::Before(part.text().to_owned()))));
            }
            reads += 1;
            // One more, which shows whether another page follows.
            let wanted = limit + 1 - rows.len();
            let read = match part {
                TopicPattern::Prefix(prefix) => {
                    let after = place.as_ref().and_then(|place| place.after(&prefix));
                    self.operator.topics(&prefix, after.cloned(), wanted).await
                }
                TopicPattern::Exact(name) => {
                    let mut names = vec![name];
                    while names.len() < wanted
                        && let Some(TopicPattern::Exact(name)) =
                            parts.next_if(|next| matches!(next, TopicPattern::Exact(_)))
                    {
                        names.push(name);
                    }
                    self.operator.topics_named(names).await
                }
            };
            rows.extend(read.map_err(RpcError::of_read)?);
            if rows.len() > limit {
                rows.truncate(limit);
                let last = rows.last().map(|row| TopicsPlace::After(row.topic.name.clone()));
                return Ok((rows, last));
            }
        }
        Ok((rows, None))
    }
}

#[tonic::async_trait]
impl TopicService for TopicsHandler {
    async fn create_topic(
        &self,
        request: Request<pb::CreateTopicRequest>,
    ) -> Result<Response<pb::CreateTopicResponse>, Status> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::CreateTopic)?;
        let (name, settings, etag) = topic_policy::create_topic(request.into_inner())?;
        access.touch(&name).map_err(|error| error.with_field("topic.name"))?;
        may_move(&access, &name, &settings)?;
        let room = self.room(&name);
        let changed = self.operator.create_topic(name.clone(), settings, etag, room, until).await;
        let (topic, unreachable_shards) = self.changed(&access, &name, changed).await?;
        Ok(Response::new(pb::CreateTopicResponse { topic: Some(topic), unreachable_shards }))
    }

    async fn update_topic(
        &self,
        request: Request<pb::UpdateTopicRequest>,
    ) -> Result<Response<pb::UpdateTopicResponse>, Status> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::UpdateTopic)?;
        let update = topic_policy::update_topic(request.into_inner())?;
        let (name, change) = (update.name.clone(), update.change());
        match update.allow_missing {
            true => access.touch(&name),
            false => access.touch_existing(&name),
        }
        .map_err(|error| error.with_field("topic.name"))?;
        may_move(&access, &name, &update.settings)?;
        let (terms, room) = ((update.etag, update.allow_missing), self.room(&name));
        let changed = self.operator.update_topic(name.clone(), change, terms, room, until).await;
        let (topic, unreachable_shards) = self.changed(&access, &name, changed).await?;
        Ok(Response::new(pb::UpdateTopicResponse { topic: Some(topic), unreachable_shards }))
    }

    async fn delete_topic(
        &self,
        request: Request<pb::DeleteTopicRequest>,
    ) -> Result<Response<pb::DeleteTopicResponse>, Status> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::DeleteTopic)?;
        let TopicDeletion { name, force, etag } = topic_policy::delete_topic(request.into_inner())?;
        access.touch_existing(&name)?;
        let deleted = self.operator.delete_topic(name.clone(), (etag, force), until).await;
        let unreachable_shards = deleted.map_err(|error| RpcError::of_topic(error, &name))?;
        Ok(Response::new(pb::DeleteTopicResponse { unreachable_shards }))
    }

    async fn pause_topic(
        &self,
        request: Request<pb::PauseTopicRequest>,
    ) -> Result<Response<pb::PauseTopicResponse>, Status> {
        let (now, until) = (self.operator.clock().now(), write_deadline(request.extensions()));
        let access = CallAccess::of(request.extensions(), Rpc::PauseTopic)?;
        let (name, pause) = topic_policy::pause_topic(request.into_inner(), now)?;
        access.touch_existing(&name)?;
        let changed = self.operator.set_topic_pause(name.clone(), Some(pause), until).await;
        let (topic, unreachable_shards) = self.changed(&access, &name, changed).await?;
        Ok(Response::new(pb::PauseTopicResponse { topic: Some(topic), unreachable_shards }))
    }

    async fn resume_topic(
        &self,
        request: Request<pb::ResumeTopicRequest>,
    ) -> Result<Response<pb::ResumeTopicResponse>, Status> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::ResumeTopic)?;
        let name = topic_policy::resume_topic(&request.into_inner())?;
        access.touch_existing(&name)?;
        let changed = self.operator.set_topic_pause(name.clone(), None, until).await;
        let (topic, unreachable_shards) = self.changed(&access, &name, changed).await?;
        Ok(Response::new(pb::ResumeTopicResponse { topic: Some(topic), unreachable_shards }))
    }

    async fn get_topic(
        &self,
        request: Request<pb::GetTopicRequest>,
    ) -> Result<Response<pb::GetTopicResponse>, Status> {
        let access = CallAccess::of(request.extensions(), Rpc::GetTopic)?;
        let row = self.row(&access, topic::get_topic(&request.into_inner())?).await?;
        let (view, now) = (self.operator.documents().view(), self.operator.clock().now());
        let topic = Some(to_topic(&row.topic, &view, now));
        Ok(Response::new(pb::GetTopicResponse { topic }))
    }

    async fn list_topics(
        &self,
        request: Request<pb::ListTopicsRequest>,
    ) -> Result<Response<pb::ListTopicsResponse>, Status> {
        let access = CallAccess::of(request.extensions(), Rpc::ListTopics)?;
        let page = list::list_topics(&request.into_inner())?;
        let prefix = page.prefix.clone();
        let (rows, next) = self.shown_rows(&access, page).await?;
        let token = next.map(|place| list::to_topics_token(&prefix, &place));
        let streams = StreamCounts::of(self.dispatcher.workers());
        let (view, now) = (self.operator.documents().view(), self.operator.clock().now());
        let rows = rows.into_iter();
        let topics = rows.map(|row| to_topic_summary(row, &streams, &view, now)).collect();
        let next_page_token = token.unwrap_or_default();
        Ok(Response::new(pb::ListTopicsResponse { topics, next_page_token }))
    }

    async fn get_topic_stats(
        &self,
        request: Request<pb::GetTopicStatsRequest>,
    ) -> Result<Response<pb::GetTopicStatsResponse>, Status> {
        let access = CallAccess::of(request.extensions(), Rpc::GetTopicStats)?;
        let row = self.row(&access, topic::get_topic_stats(&request.into_inner())?).await?;
        let streams = StreamCounts::of(self.dispatcher.workers());
        Ok(Response::new(pb::GetTopicStatsResponse { stats: Some(to_topic_stats(row, &streams)) }))
    }

    async fn purge_topic(
        &self,
        request: Request<pb::PurgeTopicRequest>,
    ) -> Result<Response<pb::PurgeTopicResponse>, Status> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::PurgeTopic)?;
        let purge = purge::purge_topic(&request.into_inner())?;
        access.touch_existing(&purge.topic)?;
        if self.operator.topic(purge.topic.clone()).await?.is_none() {
            return Err(RpcError::topic_not_found(&purge.topic).into());
        }
        let is_dry = purge.dry_run;
        let done = self.operator.purge(purge, until).await?;
        if !is_dry {
            access.note_jobs_count(done.purged);
        }
        Ok(Response::new(pb::PurgeTopicResponse {
            purged_count: to_int64(done.purged),
            unreachable_shards: done.unreachable,
        }))
    }

    async fn pause_group(
        &self,
        request: Request<pb::PauseGroupRequest>,
    ) -> Result<Response<pb::PauseGroupResponse>, Status> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::PauseGroup)?;
        let (topic, group, note) = topic_policy::pause_group(request.into_inner())?;
        access.touch_existing(&topic)?;
        let changed = self.operator.set_group_pause(topic.clone(), group, Some(note), until).await;
        let unreachable_shards = changed.map_err(|error| RpcError::of_topic(error, &topic))?;
        Ok(Response::new(pb::PauseGroupResponse { unreachable_shards }))
    }

    async fn resume_group(
        &self,
        request: Request<pb::ResumeGroupRequest>,
    ) -> Result<Response<pb::ResumeGroupResponse>, Status> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::ResumeGroup)?;
        let (topic, group) = topic_policy::resume_group(&request.into_inner())?;
        access.touch_existing(&topic)?;
        let changed = self.operator.set_group_pause(topic.clone(), group, None, until).await;
        let unreachable_shards = changed.map_err(|error| RpcError::of_topic(error, &topic))?;
        Ok(Response::new(pb::ResumeGroupResponse { unreachable_shards }))
    }

    async fn list_groups(
        &self,
        request: Request<pb::ListGroupsRequest>,
    ) -> Result<Response<pb::ListGroupsResponse>, Status> {
        let access = CallAccess::of(request.extensions(), Rpc::ListGroups)?;
        let GroupsPage { topic, after, limit } = list_groups(&request.into_inner())?;
        access.touch_existing(&topic)?;
        let found = self.operator.groups(topic.clone(), after, limit + 1).await;
        let GroupRows { mut groups, unreachable } = found.map_err(RpcError::of_read)?;
        if groups.is_empty() {
            // Without jobs it may still be a topic.
            self.row(&access, topic.clone()).await?;
        }
        let more = groups.len() > limit;
        groups.truncate(limit);
        let last = groups.last().filter(|_| more);
        Ok(Response::new(pb::ListGroupsResponse {
            next_page_token: last.map(|last| to_groups_token(&topic, last)).unwrap_or_default(),
            groups: groups.into_iter().map(to_group).collect(),
            unreachable_shards: unreachable,
        }))
    }
}

/// Allows or refuses the crash topic that the settings of a topic name. Jobs arrive there as by an Enqueue, and with
/// payloads that the caller may take from there.
fn may_move(
    access: &CallAccess,
    topic: &TopicName,
    settings: &TopicSettings,
) -> Result<(), RpcError> {
    const FIELD: &str = "topic.retry.crash_topic";
    let Some(target) = settings.retry.crash_topic.as_ref().and_then(CrashTopic::name) else {
        return Ok(());
    };
    let enqueue = access.to(Rpc::Enqueue);
    enqueue.touch(target).map_err(|error| error.with_field(FIELD))?;
    access.touch_payloads(topic).map_err(|error| error.with_field(FIELD))
}

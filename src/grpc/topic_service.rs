//! `TopicService`: topics and their statistics.

use tonic::{Request, Response, Status};

use crate::dispatch::Dispatcher;
use crate::domain::TopicName;
use crate::pb;
use crate::pb::topic_service_server::TopicService;
use crate::rpc::Rpc;
use crate::scheduler::{GroupRows, Scheduler, TopicRow};

use super::access::CallAccess;
use super::convert::group::{GroupsPage, list_groups, to_group, to_groups_token};
use super::convert::list;
use super::convert::topic::{self, StreamCounts, to_topic, to_topic_stats, to_topic_summary};
use super::status::RpcError;

/// Handler of `TopicService`.
pub(super) struct TopicsHandler {
    scheduler: Scheduler,
    dispatcher: Dispatcher,
}

// === impl TopicsHandler ===

impl TopicsHandler {
    /// Creates the handler on top of these parts.
    pub(super) fn new(scheduler: Scheduler, dispatcher: Dispatcher) -> TopicsHandler {
        TopicsHandler { scheduler, dispatcher }
    }

    async fn row(&self, access: &CallAccess, name: TopicName) -> Result<TopicRow, Status> {
        access.touch_existing(&name)?;
        let row = self.scheduler.topic(name.clone()).await.map_err(RpcError::of_read)?;
        row.ok_or_else(|| RpcError::topic_not_found(&name).into())
    }

    /// Reads the topics of a page that may be shown, and one more, which shows whether another page follows. Others
    /// are passed over, page by page.
    async fn shown_rows(
        &self,
        access: &CallAccess,
        page: list::TopicsPage,
    ) -> Result<Vec<TopicRow>, Status> {
        let list::TopicsPage { prefix, mut after, limit } = page;
        let mut shown: Vec<TopicRow> = Vec::new();
        loop {
            let rows = self.scheduler.topics(&prefix, after, limit + 1).await;
            let rows = rows.map_err(RpcError::of_read)?;
            let is_last = rows.len() <= limit;
            after = rows.last().map(|row| row.topic.name.clone());
            shown.extend(rows.into_iter().filter(|row| access.shows(&row.topic.name)));
            if is_last || shown.len() > limit {
                return Ok(shown);
            }
        }
    }
}

#[tonic::async_trait]
impl TopicService for TopicsHandler {
    async fn get_topic(
        &self,
        request: Request<pb::GetTopicRequest>,
    ) -> Result<Response<pb::GetTopicResponse>, Status> {
        let access = CallAccess::of(request.extensions(), Rpc::GetTopic)?;
        let row = self.row(&access, topic::get_topic(&request.into_inner())?).await?;
        Ok(Response::new(pb::GetTopicResponse { topic: Some(to_topic(&row.topic)) }))
    }

    async fn list_topics(
        &self,
        request: Request<pb::ListTopicsRequest>,
    ) -> Result<Response<pb::ListTopicsResponse>, Status> {
        let access = CallAccess::of(request.extensions(), Rpc::ListTopics)?;
        let page = list::list_topics(&request.into_inner())?;
        let (prefix, limit) = (page.prefix.clone(), page.limit);
        let mut rows = self.shown_rows(&access, page).await?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().filter(|_| more);
        let token = last.map(|row| list::to_topics_token(&prefix, &row.topic.name));
        let streams = StreamCounts::of(self.dispatcher.workers());
        let topics = rows.into_iter().map(|row| to_topic_summary(row, &streams)).collect();
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

    async fn list_groups(
        &self,
        request: Request<pb::ListGroupsRequest>,
    ) -> Result<Response<pb::ListGroupsResponse>, Status> {
        let access = CallAccess::of(request.extensions(), Rpc::ListGroups)?;
        let GroupsPage { topic, after, limit } = list_groups(&request.into_inner())?;
        access.touch_existing(&topic)?;
        let found = self.scheduler.groups(topic.clone(), after, limit + 1).await;
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

//! `TopicService`: topics and their statistics.

use tonic::{Request, Response, Status};

use crate::dispatch::Dispatcher;
use crate::domain::TopicName;
use crate::pb;
use crate::pb::topic_service_server::TopicService;
use crate::rpc::Rpc;
use crate::scheduler::{Scheduler, TopicRow};

use super::access::CallAccess;
use super::convert::number::to_int64;
use super::convert::topic::{self, StreamCounts, to_topic, to_topic_stats, to_topic_summary};
use super::convert::{list, purge};
use super::layers::write_deadline;
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

    async fn purge_topic(
        &self,
        request: Request<pb::PurgeTopicRequest>,
    ) -> Result<Response<pb::PurgeTopicResponse>, Status> {
        let until = write_deadline(request.extensions());
        let access = CallAccess::of(request.extensions(), Rpc::PurgeTopic)?;
        let purge = purge::purge_topic(&request.into_inner())?;
        access.touch_existing(&purge.topic)?;
        if self.scheduler.topic(purge.topic.clone()).await?.is_none() {
            return Err(RpcError::topic_not_found(&purge.topic).into());
        }
        let is_dry = purge.dry_run;
        let done = self.scheduler.purge(purge, until).await?;
        if !is_dry {
            access.note_jobs_count(done.purged);
        }
        Ok(Response::new(pb::PurgeTopicResponse {
            purged_count: to_int64(done.purged),
            unreachable_shards: done.unreachable,
        }))
    }
}

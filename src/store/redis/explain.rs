//! Reads a job with what explains why it does not run.

use crate::domain::explain::{GroupTurn, ReadyBefore};
use crate::domain::{JobKey, PriorityAgeing};
use crate::store::{ExplainedJob, Result};

use super::RedisStore;
use super::entry::JobEntry;
use super::script::{ScriptCall, Verb};

impl RedisStore {
    /// Implements [`Store::explain`](crate::store::Store::explain).
    pub(super) async fn explain(
        &self,
        key: JobKey,
        ageing: Option<PriorityAgeing>,
        limit: u64,
    ) -> Result<Option<ExplainedJob>> {
        let ageing = ageing.map_or(0, PriorityAgeing::micros);
        let add = |call: &mut ScriptCall| {
            call.arg(key.topic.as_str()).arg(key.id.as_str()).arg(ageing);
        };
        let mut reply = self.run_pruned(Verb::Explain, add).await?;
        let now = reply.time()?;
        let Some(entry) = reply.maybe_bytes()? else { return Ok(None) };
        let (jobs, more) = (reply.count()?, reply.count()? > 0);
        let before = ReadyBefore { jobs: jobs.min(limit), has_more: more || jobs > limit };
        let (lanes, running) = (reply.number()?, reply.count()?);
        let turn = u64::try_from(lanes).ok().map(|lanes| GroupTurn {
            running,
            groups_before: lanes.min(limit),
            has_more: lanes > limit,
        });
        let record = JobEntry::read(entry)?.record;
        Ok(ExplainedJob::from_record(key, &self.identity.name, record, now, before, turn))
    }
}

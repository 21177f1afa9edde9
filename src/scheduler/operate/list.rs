//! Lists jobs over all shards: a page of each, merged in the order of due times and cut to the size of one. Jobs that
//! are cut off are read again with the next page.

use std::collections::BTreeMap;

use super::Operator;
use crate::domain::{Job, ShardName, State, TopicName};
use crate::shards::{self, Op, Shard};
use crate::store::{ListCursor, ListEntry, ListPage, ListQuery};

use super::admin::shard_names;

/// Request for a page of jobs.
#[derive(Clone, Debug)]
pub struct ListJobs {
    /// Topic of the jobs.
    pub topic: TopicName,
    /// State of the jobs.
    pub state: State,
    /// True: with payload, result and attempts.
    pub full: bool,
    /// Maximum number of jobs.
    pub limit: usize,
    /// End of the last page.
    pub after: ListPosition,
}

/// Position of a list on each shard; shards that are not named are at their beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPosition(pub BTreeMap<ShardName, ShardPosition>);

/// Position of a list on one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardPosition {
    /// No job was returned yet.
    Start,
    /// All jobs before this cursor were returned.
    After(ListCursor),
    /// All jobs were returned.
    End,
}

/// A page of jobs and what is missing from it.
#[derive(Clone, Debug, Default)]
pub struct JobsPage {
    /// Jobs in the order of due times.
    pub jobs: Vec<ListedJob>,
    /// Begin of the next page; `None` at the end.
    pub next: Option<ListPosition>,
    /// Shards that did not answer, or that only other replicas have.
    pub unreachable: Vec<String>,
}

/// A job of a list over all shards.
#[derive(Clone, Debug)]
pub struct ListedJob {
    /// The job.
    pub job: Job,
    /// Shard that has the job.
    pub shard: ShardName,
    /// Position behind the job on its shard.
    pub cursor: ListCursor,
}

// === impl Operator ===

impl Operator {
    /// Returns a page of a topic's jobs in one state, from all shards that answer.
    ///
    /// # Errors
    /// Errors of the store, when no shard answers.
    pub async fn list_jobs(&self, list: ListJobs) -> shards::Result<JobsPage> {
        let shards = self.inner.shards.all().iter();
        let going =
            shards.filter(|shard| list.after.position_on(shard.name()) != ShardPosition::End);
        let going: Vec<_> = going.collect();
        let all = going.len() == self.inner.shards.all().len();
        let asks = going.into_iter().map(|shard| (shard.clone(), list.query_for(shard)));
        let read = self.inner.shards.call_each(asks.collect(), read).await;
        if all && read.answers.is_empty() {
            return read.into_partial().map(|_| JobsPage::default());
        }
        let failed = read.failed.into_iter().map(|failed| failed.shard);
        let mut unreachable: Vec<_> = failed.chain(self.inner.shards.absent_shards()).collect();
        unreachable.sort_unstable();
        let page = merge(read.answers, list.limit, list.after);
        Ok(JobsPage { unreachable: shard_names(&unreachable), ..page })
    }
}

async fn read(shard: Shard, list: ListQuery) -> shards::Result<ListPage> {
    shard.call(Op::List, |store| store.list(list)).await
}

/// Merges pages that begin after `places` to the first `limit` jobs.
fn merge(pages: Vec<(Shard, ListPage)>, limit: usize, mut places: ListPosition) -> JobsPage {
    // A page that ends early has more behind its end, so later jobs of other shards wait for the next page.
    let short = pages.iter().filter(|(_, page)| page.jobs.len() < limit);
    let known = short.filter_map(|(_, page)| page.next).map(|next| next.due).min();
    let (mut jobs, mut ends) = (Vec::new(), Vec::with_capacity(pages.len()));
    for (shard, page) in pages {
        let listed = |ListEntry { job, cursor: place }| ListedJob {
            job,
            shard: shard.name().clone(),
            cursor: place,
        };
        jobs.extend(page.jobs.into_iter().map(listed));
        ends.push((shard, page.next.map_or(ShardPosition::End, ShardPosition::After)));
    }
    // Sorted by cursor, and stable, so that jobs of one shard stay in its order: a job that has moved since its shard
    // listed it has another due time by now, and would take the page behind jobs that were not returned.
    jobs.sort_by_key(|listed| listed.cursor.due);
    let given = jobs.partition_point(|listed| known.is_none_or(|known| listed.cursor.due <= known));
    let rest = jobs.split_off(given.min(limit));
    for ListedJob { shard, cursor: place, .. } in &jobs {
        places.advance(shard.clone(), *place);
    }
    // Shards that did not answer do not count: a caller that reads to the end would loop until they do.
    let mut more = false;
    for (shard, end) in ends {
        let whole = rest.iter().all(|listed| listed.shard != *shard.name());
        if whole {
            places.0.insert(shard.name().clone(), end);
        }
        more |= !whole || end != ShardPosition::End;
    }
    JobsPage { jobs, next: more.then_some(places), unreachable: Vec::new() }
}

// === impl ListJobs ===

impl ListJobs {
    /// Builds the query for one shard.
    fn query_for(&self, shard: &Shard) -> ListQuery {
        let after = match self.after.position_on(shard.name()) {
            ShardPosition::After(cursor) => Some(cursor),
            ShardPosition::Start | ShardPosition::End => None,
        };
        let ListJobs { ref topic, state, full, limit, .. } = *self;
        ListQuery { topic: topic.clone(), state, group: None, full, limit, after }
    }
}

// === impl ListPosition ===

impl ListPosition {
    /// Moves the position behind a job that was returned.
    pub fn advance(&mut self, shard: ShardName, place: ListCursor) {
        self.0.insert(shard, ShardPosition::After(place));
    }

    fn position_on(&self, shard: &ShardName) -> ShardPosition {
        self.0.get(shard).copied().unwrap_or(ShardPosition::Start)
    }
}

#[cfg(test)]
mod tests {
    use crate::scheduler::tests::test_ring::{TestRing, draft_with_id};

    use super::*;

    #[tokio::test]
    async fn later_jobs_wait_for_a_shard_whose_page_ended_early() {
        let ring = TestRing::new(2);
        let [early, late] = [0, 1].map(|n| ring.scheduler.shards().all()[n].clone());
        for n in [0, 1] {
            ring.enqueue_accepted(ring.owned_by(n, "t", 2)).await;
        }
        let page = async |shard: &Shard| {
            let topic = TopicName::stored("t");
            let list = ListQuery {
                topic,
                state: State::Ready,
                group: None,
                full: false,
                limit: 9,
                after: None,
            };
            shard.call(Op::List, |store| store.list(list)).await.unwrap()
        };
        let (mut first, second) = (page(&early).await, page(&late).await);
        first.jobs.truncate(1);
        first.next = Some(first.jobs[0].cursor);
        let pages = vec![(late.clone(), second), (early.clone(), first.clone())];
        let merged = merge(pages, 9, ListPosition::default());
        assert_eq!(merged.jobs.len(), 1);
        assert_eq!(merged.jobs[0].shard, *early.name());
        let behind = ShardPosition::After(first.jobs[0].cursor);
        assert_eq!(merged.next, Some(ListPosition([(early.name().clone(), behind)].into())));
    }

    #[tokio::test]
    async fn a_job_that_has_moved_since_it_was_listed_makes_no_page_skip_others() {
        let ring = TestRing::new(1);
        ring.enqueue_accepted(["a", "b", "c"].map(|id| draft_with_id("t", id)).into()).await;
        let shard = ring.scheduler.shards().all()[0].clone();
        let topic = TopicName::stored("t");
        let list = ListQuery {
            topic,
            state: State::Ready,
            group: None,
            full: false,
            limit: 9,
            after: None,
        };
        let mut page = shard.call(Op::List, |store| store.list(list)).await.unwrap();
        let first = page.jobs[0].clone();
        page.jobs[2].job.due_time.0 -= 1_000_000;
        let merged = merge(vec![(shard.clone(), page)], 1, ListPosition::default());
        assert_eq!(merged.jobs[0].job, first.job);
        let behind =
            ListPosition([(shard.name().clone(), ShardPosition::After(first.cursor))].into());
        assert_eq!(merged.next, Some(behind));
    }
}

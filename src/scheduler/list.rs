//! A list of jobs over all shards: a page of each, merged in the order of due times.
//!
//! A store says where its own next page begins only for the pages that it gave out. So what a shard
//! contributed is read a second time where the merged page ends in the midst of it.

use std::collections::BTreeMap;

use crate::domain::{Job, ShardName, State, Time, TopicName};
use crate::shards::{Op, Shard};
use crate::store::{self, Cursor, List, Page, Store};

use super::Scheduler;
use super::admin::names_of;

/// Asks for a page of jobs.
#[derive(Clone, Debug)]
pub struct ListJobs {
    /// Their topic.
    pub topic: TopicName,
    /// Their state.
    pub state: State,
    /// With payload, result and attempts.
    pub full: bool,
    /// At most so many.
    pub limit: usize,
    /// Where the last page ended.
    pub after: Places,
}

/// How far a list has come on each shard; those that are not named are at their beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places(pub BTreeMap<ShardName, Place>);

/// How far a list has come on one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nothing of it was given out.
    Begin,
    /// What is before this was.
    Behind(Cursor),
    /// All of it was.
    End,
}

/// What one shard contributes to a page.
struct Part {
    shard: Shard,
    jobs: Vec<Job>,
    next: Place,
}

/// A page of jobs and what is missing from it.
#[derive(Clone, Debug, Default)]
pub struct JobsPage {
    /// In the order of due times.
    pub jobs: Vec<Job>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Places>,
    /// Shards that did not answer.
    pub unreachable: Vec<String>,
}

// === impl Scheduler ===

impl Scheduler {
    /// A page of a topic's jobs in one state, from all shards that answer.
    ///
    /// # Errors
    /// As the store's, when no shard answers.
    pub async fn list_jobs(&self, list: ListJobs) -> store::Result<JobsPage> {
        let shards = self.inner.shards.all().iter();
        let going = shards.filter(|shard| list.after.of(shard.name()) != Place::End);
        let going: Vec<_> = going.collect();
        let all = going.len() == self.inner.shards.all().len();
        let asks = going.into_iter().map(|shard| (shard.clone(), list.on(shard, list.limit)));
        let read = self.inner.shards.ask_each(Op::List, asks.collect(), read).await;
        if all && read.answers.is_empty() {
            return read.partial().map(|_| JobsPage::default());
        }
        let mut unreachable: Vec<_> = read.failed.into_iter().map(|(name, _)| name).collect();
        let mut parts: Vec<_> = read.answers.into_iter().map(Part::new).collect();
        unreachable.extend(self.cut(&list, &mut parts).await);
        unreachable.sort_unstable();
        // Not for the sake of those that do not answer: whoever goes on until the end would go on
        // until they do.
        let more = parts.iter().any(|part| part.next != Place::End);
        let mut places = list.after;
        places.0.extend(parts.iter().map(|part| (part.shard.name().clone(), part.next)));
        let (next, unreachable) = (more.then_some(places), names_of(&unreachable));
        Ok(JobsPage { jobs: merge(parts), next, unreachable })
    }

    /// Cuts the pages of all shards to the size of one. Answers who has not answered again; it then
    /// contributes nothing.
    async fn cut(&self, list: &ListJobs, parts: &mut Vec<Part>) -> Vec<ShardName> {
        let counts = shares(parts, list.limit);
        let mut again = Vec::new();
        for (part, count) in parts.iter_mut().zip(counts) {
            if count == part.jobs.len() {
                continue;
            }
            (part.jobs, part.next) = (Vec::new(), list.after.of(part.shard.name()));
            if count > 0 {
                again.push((part.shard.clone(), list.on(&part.shard, count)));
            }
        }
        let read = self.inner.shards.ask_each(Op::List, again, read).await;
        for (shard, page) in read.answers {
            parts.retain(|part| part.shard.name() != shard.name());
            parts.push(Part::new((shard, page)));
        }
        read.failed.into_iter().map(|(name, _)| name).collect()
    }
}

fn read(store: &dyn Store, list: List) -> store::Reply<'_, Page> {
    store.list(list)
}

/// How many jobs of each page belong to the first `limit` of all.
fn shares(parts: &[Part], limit: usize) -> Vec<usize> {
    let dues = parts
        .iter()
        .enumerate()
        .flat_map(|(place, part)| part.jobs.iter().map(move |job| (job.due_time, place)));
    let mut dues: Vec<(Time, usize)> = dues.collect();
    dues.sort_unstable();
    let mut counts = vec![0; parts.len()];
    dues.into_iter().take(limit).for_each(|(_, place)| counts[place] += 1);
    counts
}

fn merge(parts: Vec<Part>) -> Vec<Job> {
    let mut jobs: Vec<Job> = parts.into_iter().flat_map(|part| part.jobs).collect();
    // Stable: jobs of one shard stay in its order.
    jobs.sort_by_key(|job| job.due_time);
    jobs
}

// === impl ListJobs ===

impl ListJobs {
    /// What is asked of one shard.
    fn on(&self, shard: &Shard, limit: usize) -> List {
        let after = match self.after.of(shard.name()) {
            Place::Behind(cursor) => Some(cursor),
            Place::Begin | Place::End => None,
        };
        List { topic: self.topic.clone(), state: self.state, full: self.full, limit, after }
    }
}

// === impl Places ===

impl Places {
    fn of(&self, shard: &ShardName) -> Place {
        self.0.get(shard).copied().unwrap_or(Place::Begin)
    }
}

// === impl Part ===

impl Part {
    fn new((shard, page): (Shard, Page)) -> Part {
        Part { shard, jobs: page.jobs, next: page.next.map_or(Place::End, Place::Behind) }
    }
}

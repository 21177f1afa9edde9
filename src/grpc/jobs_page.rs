//! Page of jobs that fits into a message: it is read in pieces, and ends before it would exceed its limit.

use prost::Message as _;

use crate::contract::enums::ReadView;
use crate::contract::job;
use crate::domain::limit;
use crate::pb;
use crate::scheduler::{JobsPage, ListJobs, ListPosition, ListedJob, ShardError};

/// Number of jobs in a piece with payloads: at most about 35 MiB in memory.
const FULL_PIECE: usize = 16;

/// Page as it is returned.
#[derive(Default)]
pub(super) struct SizedJobsPage {
    /// Jobs of the page.
    pub(super) jobs: Vec<pb::Job>,
    /// Position at which the next page begins.
    pub(super) next: Option<ListPosition>,
    /// Shards whose jobs are missing from the page.
    pub(super) unreachable: Vec<String>,
}

/// Reads a page of at most `list.limit` jobs and [`limit::LIST_JOBS_BYTES_MAX`] bytes, but of at least one job if
/// there is any.
pub(super) async fn jobs_page<F>(
    list: ListJobs,
    view: ReadView,
    read: impl Fn(ListJobs) -> F,
) -> Result<SizedJobsPage, ShardError>
where
    F: Future<Output = Result<JobsPage, ShardError>>,
{
    let (mut page, mut after, mut bytes) = (SizedJobsPage::default(), list.after.clone(), 0);
    loop {
        let left = list.limit - page.jobs.len();
        let piece = if view == ReadView::Full { left.min(FULL_PIECE) } else { left };
        let found = read(ListJobs { limit: piece, after: after.clone(), ..list.clone() }).await?;
        page.unreachable.extend(found.unreachable);
        page.unreachable.sort_unstable();
        page.unreachable.dedup();
        for ListedJob { job, shard, cursor: place } in found.jobs {
            let job = job::to_job(job, view);
            bytes += job.encoded_len();
            if bytes > limit::LIST_JOBS_BYTES_MAX && !page.jobs.is_empty() {
                return Ok(SizedJobsPage { next: Some(after), ..page });
            }
            after.advance(shard, place);
            page.jobs.push(job);
        }
        match found.next {
            Some(next) if page.jobs.len() < list.limit => after = next,
            next => return Ok(SizedJobsPage { next, ..page }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;
    use crate::contract::job::tests::job as any_job;
    use crate::domain::{Job, Payload, ShardName, State, Time, TopicName};
    use crate::scheduler::ShardPosition;
    use crate::store::ListCursor;

    /// Returns a list call over jobs of these payload sizes, in order; the cursor is the index of the last job
    /// returned.
    fn shelf(
        sizes: &[usize],
    ) -> impl Fn(ListJobs) -> std::future::Ready<Result<JobsPage, ShardError>> {
        let (sizes, shard) = (sizes.to_vec(), ShardName::try_new("s0").unwrap());
        move |list| {
            let from = match list.after.0.get(&shard) {
                Some(ShardPosition::After(last)) => usize::try_from(last.sequence).unwrap() + 1,
                _ => 0,
            };
            let to = (from + list.limit).min(sizes.len());
            let place =
                |index| ListCursor { due: Time(0), sequence: i64::try_from(index).unwrap() };
            let listed = |index| {
                let job = of_size(sizes[index], list.full);
                ListedJob { job, shard: shard.clone(), cursor: place(index) }
            };
            let mut next = list.after.clone();
            next.advance(shard.clone(), place(to - 1));
            let (jobs, next) =
                ((from..to).map(listed).collect(), (to < sizes.len()).then_some(next));
            ready(Ok(JobsPage { jobs, next, unreachable: Vec::new() }))
        }
    }

    fn of_size(size: usize, full: bool) -> Job {
        let mut job = any_job();
        let payload = Payload { body: vec![7; size].into(), ..Payload::default() };
        job.spec.payload = full.then_some(payload);
        job
    }

    fn list(limit: usize, after: Option<ListPosition>) -> ListJobs {
        let (topic, after) = (TopicName::stored("t"), after.unwrap_or_default());
        ListJobs { topic, state: State::Dead, full: true, limit, after }
    }

    #[tokio::test]
    async fn every_job_comes_once_however_pages_are_cut() {
        let mib = 1 << 20;
        let sizes = [mib, mib, 10, mib, mib - 1, 4 * mib, 10, mib].repeat(5);
        let read = shelf(&sizes);
        let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = jobs_page(list(50, after), ReadView::Full, &read).await.unwrap();
            let bytes: usize = page.jobs.iter().map(prost::Message::encoded_len).sum();
            assert!(bytes <= limit::LIST_JOBS_BYTES_MAX || page.jobs.len() == 1, "{bytes}");
            assert!(!page.jobs.is_empty());
            let payload = |job: pb::Job| job.spec.and_then(|spec| spec.payload?.kind);
            seen.extend(page.jobs.into_iter().map(|job| match payload(job) {
                Some(pb::payload::Kind::Data(data)) => data.len(),
                _ => 0,
            }));
            pages += 1;
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, sizes);
        assert!(pages < sizes.len());
    }

    #[tokio::test]
    async fn small_jobs_fill_the_page_that_was_asked_for() {
        let read = shelf(&[10; 100]);
        let page = jobs_page(list(40, None), ReadView::Full, &read).await.unwrap();
        assert_eq!(page.jobs.len(), 40);
        let rest = jobs_page(list(500, page.next), ReadView::Full, &read).await.unwrap();
        assert_eq!((rest.jobs.len(), rest.next), (60, None));
    }
}

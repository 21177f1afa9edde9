//! List: the jobs of a topic in one state, by due time, in pages.

use std::collections::BTreeMap;

use crate::store_calls::{JobDeletion, StoreCalls as _, TestJob};
use ringq::domain::{RetentionRule, State};
use ringq::store::{ListCursor, ListEntry, ListPage, ListQuery};

use super::fixture::Fixture;
use super::values::{TOPIC, after, dead_lettered, failed_for, job_in, new_job, released, topic};

async fn page(q: &Fixture, state: State, limit: usize, after: Option<ListCursor>) -> ListPage {
    let list = ListQuery { topic: topic(TOPIC), state, group: None, full: true, limit, after };
    q.store.list(list).await.unwrap()
}

async fn listed(q: &Fixture, state: State) -> Vec<String> {
    ids(&page(q, state, 100, None).await.jobs)
}

fn ids(jobs: &[ListEntry]) -> Vec<String> {
    jobs.iter().map(|listed| listed.job.key.id.to_string()).collect()
}

/// Creates one job in every state, its id the state's name.
pub(super) async fn every_state(q: &Fixture) {
    let leased = q.running("succeeded").await;
    q.ack(&leased).await;
    let leased = q.running("dead").await;
    q.end(&leased, dead_lettered()).await;
    let leased = q.running("backoff").await;
    q.end(&leased, failed_for(900)).await;
    q.put(TestJob { expire: Some(after(1)), ..new_job("expired") }).await;
    q.sleep(1);
    q.put(new_job("cancelled")).await;
    q.delete("cancelled").await;
    q.running("running").await;
    q.put(new_job("ready")).await;
    q.put(TestJob { due: after(900), ..new_job("scheduled") }).await;
    q.put(job_in("u", "elsewhere")).await;
}

pub(crate) async fn a_list_has_the_jobs_of_its_topic_and_state(q: Fixture) {
    every_state(&q).await;
    for state in State::ALL {
        let jobs = page(&q, state, 100, None).await.jobs;
        assert_eq!(ids(&jobs), [state.name()]);
        assert_eq!(jobs[0].job, q.job(state.name()).await, "as Get reads it");
    }
}

pub(crate) async fn a_brief_list_reads_like_a_brief_get(q: Fixture) {
    every_state(&q).await;
    for state in State::ALL {
        let list = ListQuery {
            topic: topic(TOPIC),
            state,
            group: None,
            full: false,
            limit: 9,
            after: None,
        };
        let jobs = q.store.list(list).await.unwrap().jobs.into_iter().map(|listed| listed.job);
        let key = super::key(TOPIC, state.name());
        let got = q.store.get(vec![key], false).await.unwrap();
        assert_eq!(jobs.collect::<Vec<_>>(), got.into_iter().flatten().collect::<Vec<_>>());
    }
}

pub(crate) async fn the_clock_moves_jobs_from_list_to_list(q: Fixture) {
    let due = q.put(TestJob { due: after(5), expire: Some(after(9)), ..new_job("a") }).await.due;
    q.until_just_before(due);
    assert_eq!(listed(&q, State::Scheduled).await, ["a"]);
    assert!(listed(&q, State::Ready).await.is_empty());
    q.until(due);
    assert_eq!(listed(&q, State::Ready).await, ["a"]);
    assert!(listed(&q, State::Scheduled).await.is_empty());
    q.sleep(4);
    assert_eq!(listed(&q, State::Expired).await, ["a"]);
    assert!(listed(&q, State::Ready).await.is_empty());
    q.sleep(60);
    assert!(listed(&q, State::Expired).await.is_empty());
}

pub(crate) async fn jobs_come_by_due_time_whatever_their_priority(q: Fixture) {
    let at = |id, seconds, priority| TestJob {
        due: after(seconds),
        priority: Some(priority),
        ..new_job(id)
    };
    let jobs = vec![at("c", 3, 9), at("a", 1, 0), at("d", 3, 0), at("b", 2, 5)];
    q.store.enqueue(jobs).await.unwrap();
    assert_eq!(listed(&q, State::Scheduled).await, ["a", "b", "c", "d"]);
}

pub(crate) async fn pages_follow_each_other_without_gaps_or_repeats(q: Fixture) {
    let job = |n: u64| TestJob { due: after(n % 7), ..new_job(&format!("j{n:03}")) };
    q.store.enqueue((0..100).map(job).collect()).await.unwrap();
    q.sleep(3);
    for state in [State::Ready, State::Scheduled] {
        let whole = page(&q, state, 1_000, None).await;
        assert_eq!(whole.next, None);
        for limit in [1, 3, 7, 57] {
            let (mut found, mut after) = (Vec::new(), None);
            loop {
                let page = page(&q, state, limit, after).await;
                assert!(page.jobs.len() <= limit);
                found.extend(page.jobs);
                after = page.next;
                assert_eq!(after.is_some(), found.len() < whole.jobs.len(), "by {limit}");
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(ids(&found), ids(&whole.jobs), "{state:?} by {limit}");
        }
    }
}

pub(crate) async fn a_page_may_end_behind_any_of_its_jobs(q: Fixture) {
    let job = |n: u64| TestJob { due: after(n / 4), ..new_job(&format!("j{n:02}")) };
    q.store.enqueue((0..12).map(job).collect()).await.unwrap();
    let leased = q.claim(2).await;
    q.sleep(1);
    for state in [State::Running, State::Ready, State::Scheduled] {
        let whole = page(&q, state, 100, None).await.jobs;
        assert!(whole.len() >= leased.len(), "{state:?}");
        for (index, listed) in whole.iter().enumerate() {
            let rest = page(&q, state, 100, Some(listed.cursor)).await.jobs;
            assert_eq!(rest, whole[index + 1..], "{state:?} after {index}");
        }
    }
}

pub(crate) async fn a_job_that_leaves_between_two_pages_leaves_no_gap(q: Fixture) {
    q.put_ids(&["a", "b", "c", "d"]).await;
    let first = page(&q, State::Ready, 2, None).await;
    assert_eq!(ids(&first.jobs), ["a", "b"]);
    q.claim(2).await;
    q.put(new_job("e")).await;
    let rest = page(&q, State::Ready, 9, first.next).await;
    assert_eq!(ids(&rest.jobs), ["c", "d", "e"]);
}

pub(crate) async fn a_list_of_nothing_is_empty(q: Fixture) {
    let empty = page(&q, State::Ready, 10, None).await;
    assert_eq!((empty.jobs.len(), empty.next), (0, None), "no such topic");
    q.put(new_job("a")).await;
    assert!(listed(&q, State::Dead).await.is_empty());
}

pub(crate) async fn every_job_is_in_exactly_one_list(q: Fixture) {
    every_state(&q).await;
    let mut count: BTreeMap<String, u32> = BTreeMap::new();
    for state in State::ALL {
        for id in listed(&q, state).await {
            *count.entry(id).or_default() += 1;
        }
    }
    assert_eq!(count.len(), State::ALL.len());
    assert!(count.values().all(|&n| n == 1), "{count:?}");
}

pub(crate) async fn jobs_behind_many_that_were_deleted_are_found_page_by_page(q: Fixture) {
    const JOBS: usize = 6_000;
    let id = |n: usize| format!("j{n:04}");
    for part in (0..JOBS).collect::<Vec<_>>().chunks(500) {
        let job = |&n: &usize| TestJob { retention: RetentionRule::Nothing, ..new_job(&id(n)) };
        q.store.enqueue(part.iter().map(job).collect()).await.unwrap();
    }
    // Fewer than half of them: otherwise the others would be put into another order.
    let gone = |n: usize| (10..2_900).contains(&n);
    for part in (0..JOBS).filter(|&n| gone(n)).collect::<Vec<_>>().chunks(500) {
        let delete = |&n: &usize| JobDeletion::from(super::key(TOPIC, &id(n)));
        q.store.delete(part.iter().map(delete).collect()).await.unwrap();
    }
    // A job that comes from elsewhere and belongs before the waiting ones.
    let leased = q.claim_one().await;
    q.end(&leased, released()).await;
    let (mut found, mut after) = (Vec::new(), None);
    for _ in 0..JOBS {
        let page = page(&q, State::Ready, 100, after).await;
        found.extend(ids(&page.jobs));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    let mut expected: Vec<_> = (0..JOBS).filter(|&n| !gone(n)).map(id).collect();
    assert_eq!(found.len(), expected.len());
    found.sort();
    expected.sort();
    assert_eq!(found, expected, "each once");
}

pub(crate) async fn pages_go_through_all_priorities_in_one_order(q: Fixture) {
    let job = |n: u8| TestJob {
        priority: Some(n % 10),
        due: after(u64::from(n % 7) * 10),
        ..new_job(&format!("{n}"))
    };
    for call in 0..8 {
        let named = |n: u8| TestJob { key: super::key(TOPIC, &format!("{call}.{n}")), ..job(n) };
        q.store.enqueue((0..250).map(named).collect()).await.unwrap();
    }
    q.sleep(30);
    for (state, limit) in [(State::Ready, 500), (State::Ready, 7), (State::Scheduled, 300)] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = page(&q, state, limit, after).await;
            assert!(page.jobs.len() <= limit);
            found.extend(page.jobs.iter().map(|job| (job.cursor.due, job.cursor.sequence)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let due = |n: &u8| (u64::from(n % 7) * 10 <= 30) == (state == State::Ready);
        assert_eq!(found.len(), 8 * (0..250).filter(due).count(), "{state:?} by {limit}");
        assert!(found.is_sorted_by(|a, b| a < b), "{state:?} by {limit}");
    }
}

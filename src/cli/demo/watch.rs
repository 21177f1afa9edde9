//! What becomes of the jobs, as any client of the server can see it.

use std::time::{Duration, SystemTime};

use super::super::exit::Failure;
use super::{FILES, MAIL, PAYMENT, REMINDER};
use crate::client::{Client, Error};
use crate::pb::{Attempt, GetRequest, GetTopicStatsRequest, Job, JobState, TopicStats};

/// The state of each story, and what has been told of it.
pub(super) struct Watch {
    client: Client,
    jobs: [Watched; 3],
    files: TopicStats,
}

struct Watched {
    topic: &'static str,
    id: &'static str,
    last: Option<Job>,
}

/// One look.
pub(super) struct Seen {
    pub(super) files: TopicStats,
    /// What is new.
    pub(super) stories: Vec<Story>,
}

/// A turn in the life of one of the three jobs.
#[derive(Debug)]
pub(super) enum Story {
    /// It waits for its time.
    Scheduled { id: &'static str },
    /// It failed and waits for its next attempt.
    Failed { id: &'static str, error: String, attempt: i32 },
    /// Its attempts are used up.
    Dead { id: &'static str, error: String },
    /// It is done.
    Succeeded { id: &'static str, attempts: usize, late: Option<Duration> },
}

/// The end.
pub(super) struct Summary {
    /// By topic.
    pub(super) topics: Vec<(&'static str, TopicStats)>,
    /// Lines in the results.
    pub(super) hashes: usize,
}

// === impl Watch ===

impl Watch {
    pub(super) fn new(client: Client, jobs: [(&'static str, &'static str); 3]) -> Watch {
        let jobs = jobs.map(|(topic, id)| Watched { topic, id, last: None });
        Watch { client, jobs, files: TopicStats::default() }
    }

    /// Looks at all of it.
    pub(super) async fn look(&mut self) -> Result<Seen, Failure> {
        self.files = stats(&self.client, FILES).await?;
        let mut stories = Vec::new();
        for watched in &mut self.jobs {
            let job = get(&self.client, watched.topic, watched.id).await?;
            stories.extend(watched.tell(job));
        }
        Ok(Seen { files: self.files.clone(), stories })
    }

    /// Whether every job has come to its good end.
    pub(super) fn is_over(&self, files: u64) -> bool {
        let done = |watched: &Watched| {
            watched.last.as_ref().is_some_and(|job| job.state() == JobState::Succeeded)
        };
        u64::try_from(self.files.succeeded_total) == Ok(files) && self.jobs.iter().all(done)
    }

    pub(super) async fn summary(&self, hashes: usize) -> Result<Summary, Failure> {
        let mut topics = Vec::new();
        for topic in [FILES, REMINDER.0, MAIL.0, PAYMENT.0] {
            topics.push((topic, stats(&self.client, topic).await?));
        }
        Ok(Summary { topics, hashes })
    }
}

// === impl Watched ===

impl Watched {
    /// What is new, if anything. A turn between two looks is found in the attempts.
    fn tell(&mut self, job: Job) -> Vec<Story> {
        let id = self.id;
        let told = self.last.as_ref().map_or(0, |last| last.attempts.len());
        let mut stories = Vec::new();
        if self.last.is_none() && job.state() == JobState::Scheduled {
            stories.push(Story::Scheduled { id });
        }
        // Newest first; a redriven job keeps its attempts.
        for attempt in job.attempts.iter().rev().skip(told) {
            if !attempt.error.is_empty() {
                let (error, attempt) = (attempt.error.clone(), attempt.number);
                stories.push(Story::Failed { id, error, attempt });
            }
        }
        let before = self.last.as_ref().map(Job::state);
        if before != Some(job.state()) {
            stories.extend(end(id, &job));
        }
        self.last = Some(job);
        stories
    }
}

fn end(id: &'static str, job: &Job) -> Option<Story> {
    match job.state() {
        JobState::Dead => Some(Story::Dead { id, error: job.last_error.clone() }),
        JobState::Succeeded => {
            let late = job.attempts.first().and_then(|attempt| lateness(job, attempt));
            Some(Story::Succeeded { id, attempts: job.attempts.len(), late })
        }
        _ => None,
    }
}

/// From due to begin, both by the server's clock; only for a job of one attempt, since the due time
/// moves with each.
fn lateness(job: &Job, attempt: &Attempt) -> Option<Duration> {
    if job.attempts.len() > 1 {
        return None;
    }
    let time = |time: prost_types::Timestamp| SystemTime::try_from(time).ok();
    time(attempt.start_time?)?.duration_since(time(job.due_time?)?).ok()
}

async fn stats(client: &Client, topic: &str) -> Result<TopicStats, Failure> {
    let request = GetTopicStatsRequest { name: topic.to_owned() };
    let answer = client.topics().get_topic_stats(request).await;
    let answer =
        answer.map_err(|status| Failure::call("cannot read a topic", &Error::from(status)));
    Ok(answer?.into_inner().stats.unwrap_or_default())
}

async fn get(client: &Client, topic: &str, id: &str) -> Result<Job, Failure> {
    let request = GetRequest { topic: topic.to_owned(), id: id.to_owned(), ..Default::default() };
    let answer = client.queue().get(request).await;
    let answer = answer.map_err(|status| Failure::call("cannot read a job", &Error::from(status)));
    Ok(answer?.into_inner().job.unwrap_or_default())
}

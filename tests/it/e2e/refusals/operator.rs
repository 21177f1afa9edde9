//! Forbidden requests of lists, redrive, topics, purge.

use ringq::pb::{
    ExplainJobRequest, GetTopicRequest, GetTopicStatsRequest, JobState, ListGroupsRequest,
    ListJobsRequest, ListTopicsRequest, PurgeTopicRequest, RedriveJobsRequest,
};

use super::{Call, FEATURE, INVALID, Row};
use crate::harness::Client;

const NO_JOB: &str = "NotFound JOB_NOT_FOUND";
const NO_TOPIC: &str = "NotFound TOPIC_NOT_FOUND";

pub(super) fn rows() -> Vec<Vec<Row>> {
    vec![list_jobs(), redrive_jobs(), explain_job(), topics(), purge_topic()]
}

fn list_jobs() -> Vec<Row> {
    let list = || ListJobsRequest {
        topic: "seed".into(),
        state: JobState::Ready.into(),
        ..Default::default()
    };
    vec![
        row!(
            "no topic",
            admin.list_jobs(ListJobsRequest { topic: String::new(), ..list() }),
            INVALID "topic"
        ),
        row!("no state", admin.list_jobs(ListJobsRequest { state: 0, ..list() }), INVALID "state"),
        row!("an odd state", admin.list_jobs(ListJobsRequest { state: 9, ..list() }), INVALID "state"),
        row!("an odd view", admin.list_jobs(ListJobsRequest { view: 9, ..list() }), INVALID "view"),
        row!(
            "a filter",
            admin.list_jobs(ListJobsRequest { filter: "true".into(), ..list() }),
            FEATURE "filter"
        ),
        row!(
            "a negative page",
            admin.list_jobs(ListJobsRequest { page_size: -1, ..list() }),
            INVALID "page_size"
        ),
        row!(
            "an odd token",
            admin.list_jobs(ListJobsRequest { page_token: "next".into(), ..list() }),
            INVALID "page_token"
        ),
    ]
}

fn redrive_jobs() -> Vec<Row> {
    let none = || RedriveJobsRequest { topic: "seed".into(), ..Default::default() };
    let redrive =
        |topic: &str| RedriveJobsRequest { topic: topic.into(), all: true, ..Default::default() };
    vec![
        row!("neither ids nor all", admin.redrive_jobs(none()), INVALID "ids"),
        row!(
            "ids and all",
            admin.redrive_jobs(RedriveJobsRequest { ids: vec!["dead".into()], ..redrive("seed") }),
            INVALID "all"
        ),
        row!("no topic", admin.redrive_jobs(redrive("")), INVALID "topic"),
        row!(
            "a bad id",
            admin.redrive_jobs(RedriveJobsRequest {
                ids: vec!["dead".into(), "a b".into()],
                ..none()
            }),
            INVALID "ids[1]"
        ),
        row!(
            "a filter",
            admin.redrive_jobs(RedriveJobsRequest { filter: "true".into(), ..none() }),
            FEATURE "filter"
        ),
        row!(
            "a bad target",
            admin.redrive_jobs(RedriveJobsRequest { target_topic: "a b".into(), ..redrive("seed") }),
            INVALID "target_topic"
        ),
        row!(
            "a negative rate",
            admin.redrive_jobs(RedriveJobsRequest { max_rate: -1.0, ..redrive("seed") }),
            INVALID "max_rate"
        ),
        row!(
            "a rate that is none",
            admin.redrive_jobs(RedriveJobsRequest { max_rate: f64::NAN, ..redrive("seed") }),
            INVALID "max_rate"
        ),
        row!("an unknown topic", admin.redrive_jobs(redrive("nowhere")), NO_TOPIC ""),
    ]
}

fn explain_job() -> Vec<Row> {
    let explain = |topic: &str, id: &str| ExplainJobRequest { topic: topic.into(), id: id.into() };
    vec![
        row!("no topic", admin.explain_job(explain("", "ready")), INVALID "topic"),
        row!("no id", admin.explain_job(explain("seed", "")), INVALID "id"),
        row!("a glob", admin.explain_job(explain("seed.*", "ready")), INVALID "topic"),
        row!("a bad id", admin.explain_job(explain("seed", "a b")), INVALID "id"),
        row!("an unknown job", admin.explain_job(explain("seed", "nowhere")), NO_JOB ""),
        row!("an unknown topic", admin.explain_job(explain("nowhere", "ready")), NO_JOB ""),
    ]
}

fn topics() -> Vec<Row> {
    let topic = |name: &str| GetTopicRequest { name: name.into() };
    let stats = |name: &str| GetTopicStatsRequest { name: name.into() };
    let groups = |topic: &str| ListGroupsRequest { topic: topic.into(), ..Default::default() };
    vec![
        row!(
            "a negative page",
            topics.list_topics(ListTopicsRequest { page_size: -1, ..Default::default() }),
            INVALID "page_size"
        ),
        row!(
            "an odd token",
            topics.list_topics(ListTopicsRequest { page_token: "x".into(), ..Default::default() }),
            INVALID "page_token"
        ),
        row!("no topic", topics.list_groups(groups("")), INVALID "topic"),
        row!(
            "a negative page",
            topics.list_groups(ListGroupsRequest { page_size: -1, ..groups("seed") }),
            INVALID "page_size"
        ),
        row!(
            "an odd token",
            topics.list_groups(ListGroupsRequest { page_token: "x".into(), ..groups("seed") }),
            INVALID "page_token"
        ),
        row!("an unknown topic", topics.list_groups(groups("nowhere")), NO_TOPIC ""),
        row!("no name", topics.get_topic(topic("")), INVALID "name"),
        row!("an unknown topic", topics.get_topic(topic("nowhere")), NO_TOPIC ""),
        row!("no name", topics.get_topic_stats(stats("")), INVALID "name"),
        row!("an unknown topic", topics.get_topic_stats(stats("nowhere")), NO_TOPIC ""),
    ]
}

fn purge_topic() -> Vec<Row> {
    let purge = |name: &str, states: &[i32]| PurgeTopicRequest {
        name: name.into(),
        states: states.to_vec(),
        validate_only: false,
        group: None,
    };
    let dead = JobState::Dead as i32;
    let all: Vec<i32> = (1..=8).collect();
    vec![
        row!("no name", topics.purge_topic(purge("", &[dead])), INVALID "name"),
        row!("a bad name", topics.purge_topic(purge("a b", &[dead])), INVALID "name"),
        row!("no states", topics.purge_topic(purge("seed", &[])), INVALID "states"),
        row!("an unset state", topics.purge_topic(purge("seed", &[dead, 0])), INVALID "states[1]"),
        row!("an odd state", topics.purge_topic(purge("seed", &[99, dead])), INVALID "states[0]"),
        row!(
            "a state twice",
            topics.purge_topic(purge("seed", &[dead, 2, dead])),
            INVALID "states[2]"
        ),
        row!("an unknown topic", topics.purge_topic(purge("nowhere", &all)), NO_TOPIC ""),
        row!(
            "an unknown topic to count",
            topics.purge_topic(PurgeTopicRequest { validate_only: true, ..purge("nowhere", &all) }),
            NO_TOPIC ""
        ),
    ]
}

//! Every RPC by every role, pattern and namespace, against a second description of the rules that shares nothing with
//! the server's.

use std::collections::HashMap;
use std::time::Duration;

use prost::Message as _;
use ringq::pb::{self, SettleError};
use ringq::rpc::Rpc;
use tonic::{Code, Status};

use crate::harness::{job, proto};

use super::identities::{Caller, IdentityDir, table};

const ROLES: [&str; 4] = ["producer", "worker", "operator", "viewer"];
const PATTERNS: [&str; 4] = ["*", "shop.*", "shop.mail", "bank.*"];
const NAMESPACES: [&str; 3] = ["", "shop.", "bank."];
const TOPICS: [&str; 3] = ["shop.mail", "shop.orders", "bank.pay"];

/// Right of an identity.
#[derive(Clone, Copy, Debug)]
struct Right {
    role: &'static str,
    pattern: &'static str,
    namespace: &'static str,
}

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    Denied,
    /// The job or topic does not exist for the caller.
    Hidden,
}

/// Request of KEDA, as far as it is used.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Scaled {
    #[prost(map = "string, string", tag = "3")]
    metadata: HashMap<String, String>,
}

/// Request of KEDA for values.
#[derive(Clone, PartialEq, prost::Message)]
struct ScaledMetrics {
    #[prost(message, tag = "1")]
    scaled: Option<Scaled>,
}

// === impl Scaled ===

impl Scaled {
    /// Returns the object that is scaled by the jobs of a topic.
    pub(super) fn of(topic: &str) -> Scaled {
        Scaled { metadata: [("topic".to_owned(), topic.to_owned())].into() }
    }
}

// === impl Right ===

impl Right {
    fn all() -> Vec<Right> {
        let mut all = Vec::new();
        for role in ROLES {
            for pattern in PATTERNS {
                for namespace in NAMESPACES {
                    all.push(Right { role, pattern, namespace });
                }
            }
        }
        all
    }

    fn name(&self) -> String {
        let namespace = self.namespace.trim_end_matches('.');
        format!("{}-{}-{namespace}", self.role, self.pattern.replace('*', "all"))
    }

    fn table(&self) -> String {
        let Right { role, pattern, namespace } = self;
        let namespaces = if namespace.is_empty() {
            String::new()
        } else {
            format!("namespaces = ['{namespace}']")
        };
        table(&self.name(), &format!("{role} = ['{pattern}']\n{namespaces}"))
    }

    fn sees(&self, topic: &str) -> bool {
        topic.starts_with(self.namespace)
    }

    fn covers(&self, topic: &str) -> bool {
        let matches = match self.pattern.strip_suffix('*') {
            Some(prefix) => topic.starts_with(prefix),
            None => topic == self.pattern,
        };
        matches && self.sees(topic)
    }

    fn is_whole(&self) -> bool {
        self.pattern == "*" && self.namespace.is_empty()
    }

    /// Returns the outcome that the documentation promises.
    fn expected(&self, rpc: Rpc, topic: &str) -> Outcome {
        if rpc == Rpc::GetServerInfo {
            return Outcome::Done;
        }
        if !roles(rpc).contains(&self.role) {
            return Outcome::Denied;
        }
        match rpc {
            Rpc::ListShards | Rpc::SetShardState if self.is_whole() => Outcome::Done,
            Rpc::ListShards | Rpc::SetShardState => Outcome::Denied,
            _ if self.covers(topic) => Outcome::Done,
            Rpc::Ack | Rpc::Nack | Rpc::Extend | Rpc::ListTopics | Rpc::ListWorkers => {
                Outcome::Hidden
            }
            Rpc::Get
            | Rpc::Delete
            | Rpc::Reschedule
            | Rpc::GetTopic
            | Rpc::GetTopicStats
            | Rpc::ListGroups
            | Rpc::ListJobs
            | Rpc::ExplainJob
            | Rpc::RedriveJobs
            | Rpc::UpdateTopic
            | Rpc::DeleteTopic
            | Rpc::PauseTopic
            | Rpc::ResumeTopic
            | Rpc::PauseGroup
            | Rpc::ResumeGroup
            | Rpc::PurgeTopic
                if !self.sees(topic) =>
            {
                Outcome::Hidden
            }
            _ => Outcome::Denied,
        }
    }
}

/// Returns the roles that may call an RPC. A new RPC needs a line here.
fn roles(rpc: Rpc) -> &'static [&'static str] {
    match rpc.name() {
        "Enqueue" | "BatchEnqueue" => &["producer"],
        "Get" => &["producer", "operator", "viewer"],
        "Delete" | "Reschedule" => &["producer", "operator"],
        "Stream" | "Pull" | "Ack" | "Nack" | "Extend" => &["worker"],
        "RedriveJobs" | "SetShardState" | "CreateTopic" | "UpdateTopic" | "DeleteTopic"
        | "PauseTopic" | "ResumeTopic" | "PauseGroup" | "ResumeGroup" | "PurgeTopic" => {
            &["operator"]
        }
        "GetTopic" | "ListTopics" | "GetTopicStats" | "ListGroups" | "ListJobs" | "ExplainJob"
        | "ListWorkers" | "ListShards" | "IsActive" | "StreamIsActive" | "GetMetricSpec"
        | "GetMetrics" => &["operator", "viewer"],
        other => panic!("{other} is in no row of the matrix"),
    }
}

/// World of the calls: an administrator, and a receipt of each topic.
struct World {
    admin: Caller,
    receipts: HashMap<&'static str, String>,
}

impl World {
    async fn new(admin: Caller) -> World {
        for topic in TOPICS {
            for id in ["kept", "victim"] {
                admin.enqueue(later(topic, id)).await;
            }
        }
        let mut world = World { admin, receipts: HashMap::new() };
        for topic in TOPICS {
            world.renew(topic).await;
        }
        world
    }

    /// Takes a fresh job of the topic.
    async fn renew(&mut self, topic: &'static str) {
        self.admin.enqueue(job(topic)).await;
        let pull = pb::PullRequest {
            topics: vec![topic.to_owned()],
            max_jobs: 1,
            lease_duration: Some(proto(Duration::from_secs(3_600))),
            wait: Some(proto(Duration::from_secs(10))),
            ..Default::default()
        };
        let pulled: pb::PullResponse = self.admin.call("QueueService/Pull", &pull).await.unwrap();
        self.receipts.insert(topic, pulled.deliveries[0].receipt.clone());
    }

    /// Returns the message of a call about a topic.
    fn message(&self, rpc: Rpc, topic: &str) -> Vec<u8> {
        let (name, receipt) = (topic.to_owned(), self.receipts[topic].clone());
        let later = || later(topic, "");
        let scaled = || Scaled::of(topic);
        let id = || "kept".to_owned();
        match rpc {
            Rpc::Enqueue => {
                pb::EnqueueRequest { job: Some(later()), ..Default::default() }.encode_to_vec()
            }
            Rpc::BatchEnqueue => {
                pb::BatchEnqueueRequest { jobs: vec![later()], ..Default::default() }
                    .encode_to_vec()
            }
            Rpc::Get => pb::GetRequest { topic: name, id: id(), view: 0 }.encode_to_vec(),
            Rpc::Delete => {
                let id = "victim".to_owned();
                pb::DeleteRequest { topic: name, id, allow_missing: false }.encode_to_vec()
            }
            Rpc::Reschedule => {
                let delay = proto(Duration::from_secs(7_200));
                let schedule = Some(pb::reschedule_request::Schedule::Delay(delay));
                pb::RescheduleRequest { topic: name, id: id(), schedule, priority: None }
                    .encode_to_vec()
            }
            Rpc::Stream => {
                pb::StreamRequest { topics: vec![name], ..Default::default() }.encode_to_vec()
            }
            Rpc::Pull => pb::PullRequest {
                topics: vec![name],
                wait: Some(proto(Duration::ZERO)),
                ..Default::default()
            }
            .encode_to_vec(),
            Rpc::Ack | Rpc::Nack | Rpc::Extend => settle_message(rpc, receipt),
            Rpc::CreateTopic
            | Rpc::UpdateTopic
            | Rpc::DeleteTopic
            | Rpc::PauseTopic
            | Rpc::PauseGroup
            | Rpc::ResumeGroup
            | Rpc::ResumeTopic
            | Rpc::GetTopic
            | Rpc::GetTopicStats
            | Rpc::ListGroups
            | Rpc::ListTopics
            | Rpc::PurgeTopic => topic_message(rpc, name),
            Rpc::ListJobs => {
                let state = pb::JobState::Scheduled.into();
                pb::ListJobsRequest { topic: name, state, ..Default::default() }.encode_to_vec()
            }
            Rpc::RedriveJobs => {
                let redrive =
                    pb::RedriveJobsRequest { topic: name, all: true, ..Default::default() };
                pb::RedriveJobsRequest { validate_only: true, ..redrive }.encode_to_vec()
            }
            Rpc::ExplainJob => pb::ExplainJobRequest { topic: name, id: id() }.encode_to_vec(),
            Rpc::ListWorkers => pb::ListWorkersRequest::default().encode_to_vec(),
            Rpc::ListShards => pb::ListShardsRequest::default().encode_to_vec(),
            Rpc::SetShardState => pb::SetShardStateRequest {
                name: "s0".to_owned(),
                state: pb::ShardState::Active.into(),
            }
            .encode_to_vec(),
            Rpc::GetServerInfo => pb::GetServerInfoRequest::default().encode_to_vec(),
            Rpc::IsActive | Rpc::StreamIsActive | Rpc::GetMetricSpec => scaled().encode_to_vec(),
            Rpc::GetMetrics => ScaledMetrics { scaled: Some(scaled()) }.encode_to_vec(),
        }
    }

    /// Calls an RPC about a topic, and returns what the caller sees of it.
    async fn outcome(&mut self, caller: &Caller, rpc: Rpc, topic: &'static str) -> Outcome {
        let answer = caller.raw(rpc.path(), self.message(rpc, topic).into()).await;
        let outcome = match answer {
            Err(status) if is_allowed_in_vain(rpc, &status) => Outcome::Done,
            Err(status) => refused(&status),
            Ok(answer) => match rpc {
                Rpc::BatchEnqueue => {
                    let batch = pb::BatchEnqueueResponse::decode(answer).unwrap();
                    let error = batch.results[0].error.as_ref();
                    error.map_or(Outcome::Done, |error| {
                        assert_eq!(error.reason, "PERMISSION_DENIED");
                        Outcome::Denied
                    })
                }
                Rpc::Ack => settled(&pb::AckResponse::decode(answer).unwrap().failures),
                Rpc::Nack => settled(&pb::NackResponse::decode(answer).unwrap().failures),
                Rpc::Extend => settled(&pb::ExtendResponse::decode(answer).unwrap().failures),
                Rpc::ListTopics => {
                    let list = pb::ListTopicsResponse::decode(answer).unwrap();
                    shown(list.topics.iter().any(|row| row.topic.as_ref().unwrap().name == topic))
                }
                Rpc::ListWorkers => {
                    let list = pb::ListWorkersResponse::decode(answer).unwrap();
                    shown(
                        list.workers.iter().any(|worker| worker.topics.contains(&topic.to_owned())),
                    )
                }
                _ => Outcome::Done,
            },
        };
        match (rpc, outcome) {
            (Rpc::Ack | Rpc::Nack, Outcome::Done) => self.renew(topic).await,
            (Rpc::PauseTopic, Outcome::Done) => {
                let resume = pb::ResumeTopicRequest { name: topic.to_owned() };
                let _: pb::ResumeTopicResponse =
                    self.admin.call("TopicService/ResumeTopic", &resume).await.unwrap();
            }
            (Rpc::Delete, Outcome::Done) => {
                self.admin.enqueue(later(topic, "victim")).await;
            }
            _ => {}
        }
        outcome
    }
}

/// Returns a purge that removes nothing.
fn count_dead(name: String) -> pb::PurgeTopicRequest {
    let states = vec![pb::JobState::Dead.into()];
    pb::PurgeTopicRequest { name, states, validate_only: true, group: None }
}

/// Returns the message of a call that settles or extends a lease.
fn settle_message(rpc: Rpc, receipt: String) -> Vec<u8> {
    match rpc {
        Rpc::Ack => {
            let item = pb::AckItem { receipt, ..Default::default() };
            pb::AckRequest { items: vec![item] }.encode_to_vec()
        }
        Rpc::Nack => {
            let action = pb::NackAction::DeadLetter.into();
            let item = pb::NackItem { receipt, action, ..Default::default() };
            pb::NackRequest { items: vec![item] }.encode_to_vec()
        }
        Rpc::Extend => {
            let item = pb::ExtendItem { receipt, ..Default::default() };
            pb::ExtendRequest { items: vec![item] }.encode_to_vec()
        }
        other => unreachable!("{other:?} settles nothing"),
    }
}

/// Returns the message of a call of `TopicService` about a topic.
fn topic_message(rpc: Rpc, name: String) -> Vec<u8> {
    match rpc {
        Rpc::CreateTopic => {
            let topic = Some(pb::Topic { name, ..Default::default() });
            pb::CreateTopicRequest { topic }.encode_to_vec()
        }
        Rpc::UpdateTopic => {
            let description = "changed".to_owned();
            let topic = Some(pb::Topic { name, description, ..Default::default() });
            pb::UpdateTopicRequest { topic, ..Default::default() }.encode_to_vec()
        }
        // Each topic has jobs, so nothing is deleted.
        Rpc::DeleteTopic => pb::DeleteTopicRequest { name, ..Default::default() }.encode_to_vec(),
        Rpc::PauseTopic => pb::PauseTopicRequest { name, ..Default::default() }.encode_to_vec(),
        Rpc::PauseGroup => {
            let group = "paused".to_owned();
            pb::PauseGroupRequest { topic: name, group, ..Default::default() }.encode_to_vec()
        }
        Rpc::ResumeGroup => {
            let group = "paused".to_owned();
            pb::ResumeGroupRequest { topic: name, group }.encode_to_vec()
        }
        Rpc::ResumeTopic => pb::ResumeTopicRequest { name }.encode_to_vec(),
        Rpc::GetTopic => pb::GetTopicRequest { name }.encode_to_vec(),
        Rpc::GetTopicStats => pb::GetTopicStatsRequest { name }.encode_to_vec(),
        Rpc::ListGroups => {
            pb::ListGroupsRequest { topic: name, ..Default::default() }.encode_to_vec()
        }
        Rpc::ListTopics => pb::ListTopicsRequest::default().encode_to_vec(),
        Rpc::PurgeTopic => count_dead(name).encode_to_vec(),
        other => unreachable!("{other:?} is no call about topics"),
    }
}

/// Returns a job that is due in an hour.
fn later(topic: &str, id: &str) -> pb::JobSpec {
    let delay = pb::job_spec::Schedule::Delay(proto(Duration::from_secs(3_600)));
    pb::JobSpec { id: id.to_owned(), schedule: Some(delay), ..job(topic) }
}

/// Returns whether a call was refused only because its topic exists, and has jobs.
fn is_allowed_in_vain(rpc: Rpc, status: &Status) -> bool {
    match rpc {
        Rpc::CreateTopic => status.code() == Code::AlreadyExists,
        Rpc::DeleteTopic => status.code() == Code::FailedPrecondition,
        _ => false,
    }
}

fn shown(is_shown: bool) -> Outcome {
    if is_shown { Outcome::Done } else { Outcome::Hidden }
}

fn refused(status: &Status) -> Outcome {
    match status.code() {
        Code::PermissionDenied => Outcome::Denied,
        Code::NotFound => Outcome::Hidden,
        _ => panic!("{status:?}"),
    }
}

fn settled(failures: &[pb::SettleFailure]) -> Outcome {
    match failures {
        [] => Outcome::Done,
        [one] if one.error() == SettleError::NotFound => Outcome::Hidden,
        others => panic!("{others:?}"),
    }
}

#[tokio::test]
async fn every_rpc_by_role_pattern_and_namespace() {
    let admin = "producer = ['*']\nworker = ['*']\noperator = ['*']";
    let rights = Right::all();
    let tables = rights.iter().map(Right::table).collect::<String>() + &table("admin", admin);
    let dir = IdentityDir::new(&tables);
    let server = dir.setup().start().await;
    let admin = Caller::connect(&server, "admin").await;
    // A worker that ListWorkers can show, whose only credit is in use: it takes no job from the calls.
    admin.enqueue(job("shop.mail")).await;
    let mut take = tonic::Request::new(pb::StreamRequest {
        topics: TOPICS.map(str::to_owned).into(),
        max_in_flight: 1,
        ..Default::default()
    });
    take.metadata_mut().insert("authorization", "Bearer token-admin".parse().unwrap());
    let mut stream = server.connect().await.queue.stream(take).await.unwrap().into_inner();
    while stream.message().await.unwrap().unwrap().deliveries.is_empty() {}
    let mut world = World::new(admin.clone()).await;
    let mut wrong = Vec::new();
    for right in &rights {
        let caller = admin.as_identity(&right.name());
        for rpc in Rpc::ALL {
            for topic in TOPICS {
                let found = world.outcome(&caller, rpc, topic).await;
                let expected = right.expected(rpc, topic);
                if found != expected {
                    wrong.push(format!("{right:?} {rpc:?} {topic}: {found:?}, not {expected:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of the calls:\n{}", wrong.len(), wrong.join("\n"));
}

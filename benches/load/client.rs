//! A frugal client: few connections, few tasks, batches.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use prost_types::Timestamp;
use ringq::pb;
use ringq::pb::queue_service_client::QueueServiceClient;
use ringq::pb::topic_service_client::TopicServiceClient;
use tonic::transport::{Channel, Endpoint};

use crate::ledger::Ledger;

/// The topic of every scenario; each has a server of its own.
pub(crate) const TOPIC: &str = "load";

/// One service client.
pub(crate) type Queue = QueueServiceClient<Channel>;

/// Some connections to one server.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    channels: Vec<Channel>,
}

impl Client {
    /// Opens `connections` connections.
    pub(crate) async fn connect(address: &str, connections: usize) -> Result<Self> {
        let mut channels = Vec::with_capacity(connections);
        for _ in 0..connections {
            channels.push(Endpoint::from_shared(format!("http://{address}"))?.connect().await?);
        }
        Ok(Self { channels })
    }

    /// A client on one of the connections, in turns.
    pub(crate) fn queue(&self, index: usize) -> Queue {
        QueueServiceClient::new(self.channels[index % self.channels.len()].clone())
    }

    /// The numbers of the topic.
    pub(crate) async fn stats(&self) -> Result<pb::TopicStats> {
        let mut topics = TopicServiceClient::new(self.channels[0].clone());
        let request = pb::GetTopicStatsRequest { name: TOPIC.to_owned() };
        topics.get_topic_stats(request).await?.into_inner().stats.context("no stats")
    }

    /// Compares the books with the server's own: everything succeeded, nothing is left.
    pub(crate) async fn balance(&self, ledger: &Ledger) -> Result<()> {
        ledger.balance()?;
        let stats = self.stats().await?;
        let left = stats.scheduled + stats.ready + stats.running + stats.backoff + stats.dead;
        let jobs = i64::from(ledger.jobs());
        ensure!(
            left == 0 && stats.enqueued_total == jobs && stats.succeeded_total == jobs,
            "the server's numbers do not fit {jobs} finished jobs: {stats:?}"
        );
        Ok(())
    }
}

/// The job with this number; `due_us` 0 means now.
pub(crate) fn spec(ledger: &Arc<Ledger>, number: u32, due_us: i64) -> pb::JobSpec {
    let data = ledger.body(number, due_us);
    pb::JobSpec {
        topic: TOPIC.to_owned(),
        payload: Some(pb::Payload {
            kind: Some(pb::payload::Kind::Data(data)),
            content_type: String::new(),
        }),
        schedule: (due_us != 0).then(|| pb::job_spec::Schedule::DueTime(timestamp(due_us))),
        ..Default::default()
    }
}

/// The bytes of a delivery.
pub(crate) fn body(delivery: &pb::Delivery) -> &[u8] {
    match delivery.payload.as_ref().and_then(|payload| payload.kind.as_ref()) {
        Some(pb::payload::Kind::Data(data)) => data,
        _ => &[],
    }
}

fn timestamp(us: i64) -> Timestamp {
    let nanos = i32::try_from(us % 1_000_000 * 1000).expect("below 10^9");
    Timestamp { seconds: us / 1_000_000, nanos }
}

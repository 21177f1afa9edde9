//! Time of a job from one replica to a worker that idles on another: a script, a wake-up and a claim of one Redis,
//! which this starts. Both times are of the client's clock.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use ringq::client::Client;
use ringq::pb;
use tokio::runtime::Builder;
use tokio::time::sleep;

use super::LoadSettings;
use crate::percentile::percentile;
use crate::redis::RedisProcess;
use crate::report::{FigureTarget, LoadFigure};
use crate::server::{LoadServer, LoadServerLauncher};

const TOPIC: &str = "load";
const JOBS: u32 = 1000;
/// Number of jobs that do not count: connections and scripts are warm after them.
const WARM_UP: u32 = 100;
/// Pause between two jobs, so that the worker idles.
const PAUSE: Duration = Duration::from_millis(5);

pub(super) fn cross(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let dir = tempfile::Builder::new().prefix("ringq-load-").tempdir_in(&setting.dir)?;
    let redis = RedisProcess::start(dir.path())?;
    let replica = |name: &str| -> Result<LoadServer> {
        let scratch = dir.path().join(name);
        std::fs::create_dir(&scratch)?;
        LoadServerLauncher { shards: vec![redis.url()], ..LoadServerLauncher::in_dir(&scratch) }
            .start()
    };
    let (from, to) = (replica("from")?, replica("to")?);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut took = runtime.block_on(measure(&from, &to, setting.jobs(JOBS)))?;
    Ok(vec![
        LoadFigure::new("p50", "ms", percentile(&mut took, 0.5))
            .with_target(FigureTarget::AtMost(1.0)),
        LoadFigure::new("p99", "ms", percentile(&mut took, 0.99))
            .with_target(FigureTarget::AtMost(5.0)),
    ])
}

/// Measures the milliseconds from each Enqueue to its delivery.
async fn measure(from: &LoadServer, to: &LoadServer, jobs: u32) -> Result<Vec<f64>> {
    let (from, to) = (client(from)?, client(to)?);
    let request = pb::StreamRequest {
        topics: vec![TOPIC.to_owned()],
        max_in_flight: 16,
        lease_duration: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
        ..Default::default()
    };
    let mut stream = to.queue().stream(request).await?.into_inner();
    stream.message().await?.context("the stream has ended")?;
    let mut took = Vec::new();
    for n in 0..jobs + WARM_UP {
        let job = pb::JobSpec { topic: TOPIC.to_owned(), ..Default::default() };
        let request = pb::EnqueueRequest { job: Some(job), ..Default::default() };
        let start = Instant::now();
        let (mut producer, enqueue) = (from.queue(), request);
        let (written, delivered) = tokio::join!(producer.enqueue(enqueue), next(&mut stream));
        let (written, (delivery, at)) = (written?.into_inner(), delivered?);
        ensure!(written.id == delivery.id, "{} came instead of {}", delivery.id, written.id);
        if n >= WARM_UP {
            took.push((at - start).as_secs_f64() * 1e3);
        }
        let items = vec![pb::AckItem { receipt: delivery.receipt, ..Default::default() }];
        let failures = to.queue().ack(pb::AckRequest { items }).await?.into_inner().failures;
        ensure!(failures.is_empty(), "an ack was refused: {:?}", failures[0]);
        sleep(PAUSE).await;
    }
    Ok(took)
}

/// Waits for the next job of the stream; returns it with its time of arrival.
async fn next(
    stream: &mut tonic::Streaming<pb::StreamResponse>,
) -> Result<(pb::Delivery, Instant)> {
    loop {
        let message = stream.message().await?.context("the stream has ended")?;
        if let Some(delivery) = message.deliveries.into_iter().next() {
            return Ok((delivery, Instant::now()));
        }
    }
}

pub(super) fn client(server: &LoadServer) -> Result<Client> {
    Ok(Client::new(format!("http://{}", server.address))?)
}

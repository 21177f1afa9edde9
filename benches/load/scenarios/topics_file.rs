//! A file of very many topics, on two Redis and two servers: the time until its settings are in force at the server that
//! did not read it, the same for one changed table, and the life of a job beside that.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ringq::client::Client;
use ringq::pb;
use tokio::runtime::Builder;
use tokio::time::sleep;

use super::LoadSettings;
use super::cross_replica::client;
use crate::percentile::percentile;
use crate::redis::RedisProcess;
use crate::report::{FigureTarget, LoadFigure};
use crate::server::{LoadServer, LoadServerLauncher};

const TOPICS: u32 = 9_000;
/// Number of lives that are measured without anything beside them.
const QUIET_LIVES: usize = 200;
/// Pause between two lives, so that they measure a trip and no load.
const PAUSE: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) fn topics_file(setting: &LoadSettings) -> Result<Vec<LoadFigure>> {
    let dir = tempfile::Builder::new().prefix("ringq-load-").tempdir_in(&setting.dir)?;
    let redis = [RedisProcess::start(dir.path())?, RedisProcess::start(dir.path())?];
    let (file, topics) = (dir.path().join("topics.toml"), setting.jobs(TOPICS));
    write(&file, 1, 1, 1)?;
    let server = |name: &str, topics: Option<&Path>| -> Result<LoadServer> {
        let scratch = dir.path().join(name);
        fs::create_dir(&scratch)?;
        let shards = redis.iter().map(RedisProcess::url).collect();
        let topics = topics.map(Into::into);
        LoadServerLauncher { shards, topics, ..LoadServerLauncher::in_dir(&scratch) }.start()
    };
    let (reads, other) = (server("reads", Some(&file))?, server("other", None)?);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (reads, other) = (client(&reads)?, client(&other)?);
        let mut quiet = Vec::new();
        for _ in 0..QUIET_LIVES {
            quiet.push(life(&reads).await?);
        }
        write(&file, 2, topics, 2)?;
        let (whole, mut beside) = in_force(&reads, &other, topics, 2).await?;
        write(&file, 3, topics, 3)?;
        let (one, _) = in_force(&reads, &other, topics, 3).await?;
        let slower = percentile(&mut beside, 0.5) / percentile(&mut quiet, 0.5);
        Ok(vec![
            LoadFigure::new("in force", "s", whole).with_target(FigureTarget::AtMost(10.0)),
            LoadFigure::new("one table", "s", one).with_target(FigureTarget::AtMost(2.0)),
            LoadFigure::new("life beside", "x", slower).with_target(FigureTarget::AtMost(2.0)),
        ])
    })
}

/// Writes a file of this revision, of which the last table alone has this priority.
fn write(file: &Path, revision: u32, topics: u32, priority: u32) -> Result<()> {
    use std::fmt::Write as _;
    let mut text = format!("revision = {revision}\n");
    for topic in 0..topics {
        let priority = if topic + 1 == topics { priority } else { 1 };
        write!(text, "[topic.t{topic}]\npriority = {priority}\n")?;
    }
    let next = file.with_extension("next");
    fs::write(&next, text)?;
    Ok(fs::rename(next, file)?)
}

/// Waits until the other server has the last table; returns the seconds, and the milliseconds of each life meanwhile.
async fn in_force(
    reads: &Client,
    other: &Client,
    topics: u32,
    priority: i32,
) -> Result<(f64, Vec<f64>)> {
    let (start, mut lives) = (Instant::now(), Vec::new());
    loop {
        lives.push(life(reads).await?);
        let request = pb::GetTopicRequest { name: format!("t{}", topics - 1) };
        let found = other.topics().get_topic(request).await;
        let topic = found.ok().and_then(|answer| answer.into_inner().topic);
        if topic.is_some_and(|topic| topic.priority == Some(priority)) {
            return Ok((start.elapsed().as_secs_f64(), lives));
        }
        ensure!(start.elapsed() < PATIENCE, "the file is not in force after {PATIENCE:?}");
        sleep(PAUSE).await;
    }
}

/// Enqueues, takes and acks a job of a topic that is not in the file; returns the milliseconds.
async fn life(client: &Client) -> Result<f64> {
    let job = pb::JobSpec { topic: "beside".to_owned(), ..Default::default() };
    let pull = pb::PullRequest {
        topics: vec!["beside".to_owned()],
        max_jobs: 1,
        wait: Some(prost_types::Duration { seconds: 10, nanos: 0 }),
        ..Default::default()
    };
    let (mut queue, start) = (client.queue(), Instant::now());
    queue.enqueue(pb::EnqueueRequest { job: Some(job), ..Default::default() }).await?;
    let deliveries = queue.pull(pull).await?.into_inner().deliveries;
    ensure!(deliveries.len() == 1, "no job came");
    let ack =
        |delivery: pb::Delivery| pb::AckItem { receipt: delivery.receipt, ..Default::default() };
    let items = deliveries.into_iter().map(ack).collect();
    queue.ack(pb::AckRequest { items }).await?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

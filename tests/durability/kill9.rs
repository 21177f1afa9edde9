//! `kill -9` of the server at random moments under load, restarted on the same file and port.
//!
//! Nothing acknowledged may be lost, nothing may come after its ack, nothing early.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::Rng as _;
use rand::rngs::StdRng;
use ringq::pb;
use ringq::pb::topic_service_client::TopicServiceClient;

use crate::checker::check;
use crate::clients::{Clients, reached};
use crate::history::Event;
use crate::rig::{Rig, TOPIC};
use crate::server::{Launch, Server};
use crate::setting::{free_address, number, one_rig_at_a_time, seed};
use crate::worker::LEASE;

/// Nothing happens for so long: the rig gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// Added to a moment of progress, so that kills do not follow the rhythm of answers.
const SHAKE_MS: Range<u64> = 0..30;
/// The share of kills that strike the server again while it starts.
const AGAIN: f64 = 0.2;

#[test]
fn kill9_loses_nothing() -> Result<()> {
    let _alone = one_rig_at_a_time();
    let (kills, jobs, seed) = (number("RINGQ_KILLS", 3), number("RINGQ_JOBS", 3000), seed());
    println!("kill9: {kills} kills, {jobs} jobs, RINGQ_SEED={seed}");
    let dir = tempfile::Builder::new().prefix("ringq-kill9-").tempdir()?;
    let launch = Launch { listen: free_address()?, ..Launch::in_dir(dir.path()) };
    let mut server = launch.start()?;
    let rig = Arc::new(Rig::new(jobs, seed, &server.address));
    let start = Instant::now();
    let clients = Clients::start(&rig);
    let outcome = strike(&rig, &launch, &mut server, kills);
    let drained = outcome.is_ok() && drain(&rig, &launch, &mut server)?;
    clients.stop(&rig);
    outcome?;
    judge(&rig, drained)?;
    println!("kill9: {:.1} s", start.elapsed().as_secs_f64());
    balance(&rig, &server)
}

/// All kills, spread over the progress of the producers.
fn strike(rig: &Arc<Rig>, launch: &Launch, server: &mut Server, kills: u32) -> Result<()> {
    let mut random = rig.random(9);
    let slot = f64::from(rig.jobs) / f64::from(kills + 1);
    let mut done = 0;
    while done < kills {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a job count")]
        let moment = (slot * (f64::from(done) + random.random_range(0.1..1.0))) as u32;
        ensure!(
            reached(&rig.enqueued, moment, PATIENCE),
            "the producers stand still: {}\n{}",
            rig.trouble(),
            server.log_tail()
        );
        std::thread::sleep(Duration::from_millis(random.random_range(SHAKE_MS)));
        kill(rig, server)?;
        done += 1;
        *server = launch.spawn()?;
        if done < kills && random.random_bool(AGAIN) {
            strike_again(rig, launch, server, &mut random)?;
            done += 1;
        }
        server.wait_ready()?;
    }
    Ok(())
}

/// Kills a server that is starting.
fn strike_again(
    rig: &Rig,
    launch: &Launch,
    server: &mut Server,
    random: &mut StdRng,
) -> Result<()> {
    std::thread::sleep(Duration::from_millis(random.random_range(SHAKE_MS)));
    kill(rig, server)?;
    *server = launch.spawn()?;
    Ok(())
}

fn kill(rig: &Rig, server: &mut Server) -> Result<()> {
    server.kill()?;
    rig.history.record([Event::Cut { at: rig.history.now() }]);
    Ok(())
}

/// Waits until every job is done, then restarts once more and watches whether anything comes back.
fn drain(rig: &Rig, launch: &Launch, server: &mut Server) -> Result<bool> {
    let drained =
        reached(&rig.enqueued, rig.jobs, PATIENCE) && reached(&rig.done, rig.jobs, PATIENCE);
    kill(rig, server)?;
    *server = launch.start()?;
    std::thread::sleep(LEASE + Duration::from_secs(1));
    Ok(drained)
}

fn judge(rig: &Rig, drained: bool) -> Result<()> {
    let verdict = check(rig.jobs, &rig.history.events());
    println!("kill9: {verdict}");
    if drained && verdict.sound() {
        return Ok(());
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("kill9-history.jsonl");
    rig.history.save(&path)?;
    anyhow::bail!("drained: {drained}; {verdict}\nseed {}, history: {}", rig.seed, path.display())
}

/// The server's own books must agree: all succeeded, none left over.
fn balance(rig: &Rig, server: &Server) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let stats = runtime.block_on(async {
        let mut topics = TopicServiceClient::connect(format!("http://{}", server.address)).await?;
        let request = pb::GetTopicStatsRequest { name: TOPIC.to_owned() };
        anyhow::Ok(topics.get_topic_stats(request).await?.into_inner().stats.unwrap_or_default())
    })?;
    let left = stats.scheduled + stats.ready + stats.running + stats.backoff + stats.dead;
    let jobs = i64::from(rig.jobs);
    ensure!(
        left == 0 && stats.enqueued_total == jobs && stats.succeeded_total == jobs,
        "the server's numbers do not fit {jobs} finished jobs: {stats:?}"
    );
    Ok(())
}

//! Power cuts: what was answered FSYNCED must be on the disk, and what was acknowledged must not
//! come back.
//!
//! The server works on a loop-mounted file system under load. It is stopped in mid-air, the image
//! is copied without the page cache, and a server on the copy must know every job that was answered
//! before. The proof that the rig can tell: a server whose syncs do nothing must fail it.
//!
//! The same for a server whose shard is a Redis, which then has its files there: both are stopped, and
//! both are started again.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rand::Rng as _;
use ringq::pb::Durability;

use crate::checker::{Verdict, check};
use crate::clients::{Clients, reached, settled};
use crate::history::Event;
use crate::image::{Mounted, Offer, freeze, offer, run};
use crate::redis::{Kind, Redis};
use crate::rig::Rig;
use crate::server::{Launch, Server, sqlite};
use crate::setting::{free_address, in_ci, number, one_rig_at_a_time, seed};
use crate::worker::LEASE;

/// More than any round can use up: a cut comes in the middle.
const JOBS: u32 = 60_000;
const PATIENCE: Duration = Duration::from_secs(30);
/// Answers that were sent before the cut still arrive after it.
const LAST_ANSWERS: Duration = Duration::from_millis(200);
/// Longer than all leases and delays: after such a silence nothing more comes.
const SILENCE: Duration = Duration::from_secs(8);

/// Syncs before it answers; of every line of versions that can be a shard.
const ALWAYS: Kind = Kind { program: "redis-server", appendfsync: "always" };
const OTHERS: [Kind; 2] = [
    Kind { program: "redis-server-6", appendfsync: "always" },
    Kind { program: "valkey-server", appendfsync: "always" },
];
/// Syncs later, and says when to those who ask.
const EVERY_SECOND: Kind = Kind { program: "redis-server-8", appendfsync: "everysec" };

/// What is cut.
#[derive(Clone)]
struct Case {
    /// A Redis, or else SQLite.
    redis: Option<Kind>,
    /// What producers ask for.
    asked: Durability,
    /// The cut comes after so many answers, and a random number more.
    after: Range<u32>,
    /// Given to whoever holds the jobs.
    preload: Option<PathBuf>,
}

const SQLITE: Case =
    Case { redis: None, asked: Durability::Unspecified, after: 200..3000, preload: None };

#[test]
fn a_power_cut_takes_no_synced_job() -> Result<()> {
    takes_nothing("sqlite", &SQLITE, number("RINGQ_CUTS", 2))
}

#[test]
fn a_power_cut_of_a_redis_that_always_syncs_takes_no_synced_job() -> Result<()> {
    takes_nothing("redis", &Case { redis: Some(ALWAYS), ..SQLITE }, number("RINGQ_CUTS", 1))?;
    for kind in OTHERS {
        takes_nothing(kind.program, &Case { redis: Some(kind), ..SQLITE }, 1)?;
    }
    Ok(())
}

#[test]
fn a_power_cut_of_a_redis_that_syncs_every_second_takes_no_job_that_waited() -> Result<()> {
    let asked = Durability::Fsynced;
    let case = Case { redis: Some(EVERY_SECOND), asked, after: 100..400, preload: None };
    takes_nothing("redis everysec", &case, number("RINGQ_CUTS", 1))
}

#[test]
fn the_rig_notices_a_server_that_does_not_sync() -> Result<()> {
    takes_something("sqlite", SQLITE)
}

#[test]
fn the_rig_notices_a_redis_that_does_not_sync() -> Result<()> {
    takes_something("redis", Case { redis: Some(ALWAYS), ..SQLITE })
}

fn takes_nothing(name: &str, case: &Case, rounds: u32) -> Result<()> {
    let _alone = one_rig_at_a_time();
    if !able(case)? {
        return Ok(());
    }
    let seed = seed();
    for round in 0..rounds {
        println!("powercut {name}: round {round}, RINGQ_SEED={seed}");
        let (rig, mut verdict) = cut(seed.wrapping_add(u64::from(round)), case)?;
        println!("powercut {name}: {verdict}");
        if case.asked > Durability::Unspecified {
            // Acks cannot ask: some of the last second come to nothing, and their jobs come again.
            verdict.after_ack.clear();
        }
        ensure!(verdict.enqueued > 0, "no enqueue was answered FSYNCED: the rig proves nothing");
        if !verdict.sound() {
            let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("powercut-history.jsonl");
            rig.history.save(&path)?;
            bail!("{verdict}\nhistory: {}", path.display());
        }
    }
    Ok(())
}

/// The same without any sync: then the checker must find what is missing.
fn takes_something(name: &str, case: Case) -> Result<()> {
    let _alone = one_rig_at_a_time();
    if !able(&case)? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let Some(library) = compile_nosync(dir.path())? else { return Ok(()) };
    match cut(seed(), &Case { preload: Some(library), ..case }) {
        Ok((_, verdict)) => {
            println!("powercut {name} without syncs: {verdict}");
            ensure!(!verdict.lost.is_empty(), "a server without syncs passed: the rig is blind");
        }
        Err(error) => {
            let message = format!("{error:#}");
            ensure!(message.contains(AFTER_CUT), "{message}");
            println!("powercut {name} without syncs: {message}");
        }
    }
    Ok(())
}

/// Marks a failure to start on what the cut has left.
const AFTER_CUT: &str = "no server on what the cut has left";

/// A server and, if its shard is one, its Redis.
struct Servers {
    server: Server,
    redis: Option<Redis>,
}

impl Servers {
    /// Starts them with their jobs on a disk.
    fn start(case: &Case, disk: &Mounted, preload: Option<&Path>, launch: Launch) -> Result<Self> {
        let redis = case.redis.map(|kind| kind.start(&disk.path, preload)).transpose()?;
        let shard = redis.as_ref().map_or_else(|| sqlite(&disk.path.join("ringq.db")), Redis::url);
        // SQLite is a part of the server, Redis is not.
        let preload = preload.filter(|_| redis.is_none()).map(Path::to_owned);
        let server = Launch { shards: vec![shard], preload, ..launch }.start()?;
        Ok(Self { server, redis })
    }

    /// Stops them, whoever holds the jobs first.
    fn freeze(&self) -> Result<()> {
        if let Some(redis) = &self.redis {
            freeze(redis.pid())?;
        }
        freeze(self.server.pid())
    }
}

/// One round: load, cut, restart on the copy, drain, judge. The clients go on all the while, as they
/// do when a machine comes back: what had no answer is asked again.
fn cut(seed: u64, case: &Case) -> Result<(Arc<Rig>, Verdict)> {
    let dir = tempfile::Builder::new().prefix("ringq-cut-").tempdir()?;
    let disk = Mounted::fresh(dir.path(), "before")?;
    let listen = free_address()?;
    let launch = |name| -> Result<Launch> {
        let dir = sub(dir.path(), name)?;
        Ok(Launch { listen: listen.clone(), ..Launch::in_dir(&dir) })
    };
    let mut first = Servers::start(case, &disk, case.preload.as_deref(), launch("first")?)?;
    let rig = Rig::new(JOBS, seed, &first.server.address).asking(case.asked);
    let rig = Arc::new(rig);
    let clients = Clients::start(&rig);
    load(&rig, &first.server, case)?;

    first.freeze()?;
    std::thread::sleep(LAST_ANSWERS);
    rig.no_more();
    println!("powercut: {} jobs open", rig.open());
    let copy = disk.after_cut(dir.path(), "after")?;
    rig.history.record([Event::Cut { at: rig.history.now() }]);
    first.server.kill()?;
    drop(first);

    let second = Servers::start(case, &copy, None, launch("second")?).context(AFTER_CUT)?;
    settled(&rig, SILENCE);
    std::thread::sleep(LEASE + Duration::from_secs(1));
    clients.stop(&rig);
    drop(second);
    let verdict = check(rig.jobs, &rig.history.events());
    Ok((rig, verdict))
}

/// Lets the clients work up to the moment of the cut.
fn load(rig: &Rig, server: &Server, case: &Case) -> Result<()> {
    let moment = rig.random(9).random_range(case.after.clone());
    println!("powercut: the cut comes after {moment} answers");
    ensure!(
        reached(&rig.enqueued, moment, PATIENCE),
        "the producers stand still: {}\n{}",
        rig.trouble(),
        server.log_tail()
    );
    Ok(())
}

fn sub(dir: &Path, name: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    std::fs::create_dir(&path)?;
    Ok(path)
}

/// Whether the rig can run. In CI a missing tool is an error; a machine that cannot mount is not.
fn able(case: &Case) -> Result<bool> {
    match offer() {
        Offer::Able => return case.redis.map_or(Ok(true), Kind::able),
        Offer::Lacking(why) if in_ci() => bail!("{why}"),
        Offer::Lacking(why) | Offer::Unable(why) => println!("SKIPPED power cut: {why}"),
    }
    Ok(false)
}

/// The library whose syncs do nothing, or None without a C compiler.
fn compile_nosync(dir: &Path) -> Result<Option<PathBuf>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/durability/nosync.c");
    let library = dir.join("nosync.so");
    let compiled =
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source));
    match compiled {
        Ok(()) => Ok(Some(library)),
        Err(error) if in_ci() => Err(error),
        Err(error) => {
            println!("SKIPPED the proof of the power cut rig: {error:#}");
            Ok(None)
        }
    }
}

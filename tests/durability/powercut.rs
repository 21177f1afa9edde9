//! Power cuts: what was answered FSYNCED must be on the disk, and what was acknowledged must not
//! come back.
//!
//! The server works on a loop-mounted file system under load. It is stopped in mid-air, the image
//! is copied without the page cache, and a server on the copy must know every job that was answered
//! before. The proof that the rig can tell: a server whose syncs do nothing must fail it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rand::Rng as _;

use crate::checker::{Verdict, check};
use crate::clients::{Clients, reached, settled};
use crate::history::Event;
use crate::image::{Mounted, Offer, freeze, offer, run};
use crate::rig::Rig;
use crate::server::{Launch, Server};
use crate::setting::{free_address, in_ci, number, one_rig_at_a_time, seed};
use crate::worker::LEASE;

/// More than any round can use up: a cut comes in the middle.
const JOBS: u32 = 60_000;
/// A cut comes after so many answers, and a random number more.
const CUT_AFTER: std::ops::Range<u32> = 200..3000;
const PATIENCE: Duration = Duration::from_secs(30);
/// Answers that were sent before the cut still arrive after it.
const LAST_ANSWERS: Duration = Duration::from_millis(200);
/// Longer than all leases and delays: after such a silence nothing more comes.
const SILENCE: Duration = Duration::from_secs(8);

#[test]
fn a_power_cut_takes_no_synced_job() -> Result<()> {
    let _alone = one_rig_at_a_time();
    if !able()? {
        return Ok(());
    }
    let seed = seed();
    for round in 0..number("RINGQ_CUTS", 2) {
        println!("powercut: round {round}, RINGQ_SEED={seed}");
        let (rig, verdict) = cut(seed.wrapping_add(u64::from(round)), None)?;
        println!("powercut: {verdict}");
        ensure!(verdict.enqueued > 0, "no enqueue was answered FSYNCED: the rig proves nothing");
        if !verdict.sound() {
            let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("powercut-history.jsonl");
            rig.history.save(&path)?;
            bail!("{verdict}\nhistory: {}", path.display());
        }
    }
    Ok(())
}

#[test]
fn the_rig_notices_a_server_that_does_not_sync() -> Result<()> {
    let _alone = one_rig_at_a_time();
    if !able()? {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let Some(library) = compile_nosync(dir.path())? else { return Ok(()) };
    match cut(seed(), Some(library)) {
        Ok((_, verdict)) => {
            println!("powercut without syncs: {verdict}");
            ensure!(!verdict.lost.is_empty(), "a server without syncs passed: the rig is blind");
        }
        Err(error) => {
            let message = format!("{error:#}");
            ensure!(message.contains(AFTER_CUT), "{message}");
            println!("powercut without syncs: {message}");
        }
    }
    Ok(())
}

/// Marks a failure to start on what the cut has left.
const AFTER_CUT: &str = "no server on what the cut has left";

/// One round: load, cut, restart on the copy, drain, judge. The clients go on all the while, as they
/// do when a machine comes back: what had no answer is asked again.
fn cut(seed: u64, preload: Option<PathBuf>) -> Result<(Arc<Rig>, Verdict)> {
    let dir = tempfile::Builder::new().prefix("ringq-cut-").tempdir()?;
    let disk = Mounted::fresh(dir.path(), "before")?;
    let first = Launch {
        database: disk.path.join("ringq.db"),
        listen: free_address()?,
        preload,
        ..Launch::in_dir(&sub(dir.path(), "first")?)
    };
    let mut server = first.start()?;
    let rig = Arc::new(Rig::new(JOBS, seed, &server.address));
    let clients = Clients::start(&rig);
    load(&rig, &server)?;

    freeze(server.pid())?;
    std::thread::sleep(LAST_ANSWERS);
    rig.no_more();
    println!("powercut: {} jobs open", rig.open());
    let copy = disk.after_cut(dir.path(), "after")?;
    rig.history.record([Event::Cut { at: rig.history.now() }]);
    server.kill()?;

    let second = Launch {
        database: copy.path.join("ringq.db"),
        listen: first.listen,
        ..Launch::in_dir(&sub(dir.path(), "second")?)
    };
    let server = second.start().context(AFTER_CUT)?;
    settled(&rig, SILENCE);
    std::thread::sleep(LEASE + Duration::from_secs(1));
    clients.stop(&rig);
    drop(server);
    let verdict = check(rig.jobs, &rig.history.events(), true);
    Ok((rig, verdict))
}

/// Lets the clients work up to the moment of the cut.
fn load(rig: &Rig, server: &Server) -> Result<()> {
    let moment = rig.random(9).random_range(CUT_AFTER);
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
fn able() -> Result<bool> {
    match offer() {
        Offer::Able => return Ok(true),
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

//! Scale-in of workers as an autoscaler does it: SIGTERM to one worker after the other, the newest first, which is the
//! order of a ReplicaSet whose pods all have the same deletion cost.

use std::collections::BTreeMap;
use std::fs;

use super::work_rig::{Work, kept};
use crate::harness::{Server, eventually_in, millis};

const JOBS: usize = 1_000;
/// Scale-ins, of one worker each; one worker stays.
const SCALE_INS: usize = 20;

/// Writes down the begin and the end of each job, which takes as many seconds as its payload has.
const EXEC: &str =
    r#"echo "begin $RINGQ_ID" >> "$LOG"; sleep "$(cat)"; echo "end $RINGQ_ID" >> "$LOG""#;

#[tokio::test]
async fn no_job_runs_twice_when_workers_are_scaled_in() {
    let server = Server::start().await;
    let client = server.connect().await;
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let seconds = |n: usize| format!("{}.{}", 1 + n % 2, n % 10);
    let job = |n| kept("t", &format!("j{n}")).with_text(seconds(n));
    client.enqueue_all((0..JOBS).map(job).collect()).await;

    let exec = EXEC.replace("$LOG", log.to_str().unwrap());
    let args = ["--concurrency", "20", "--quiet"];
    let mut workers: Vec<_> = (0..=SCALE_INS).map(|_| Work::start(&server, &exec, &args)).collect();
    let done = async |count: usize| {
        let what = format!("{count} jobs are done");
        let is_done = async || {
            let done = usize::try_from(client.stats("t").await.succeeded_total).unwrap();
            (done >= count).then_some(())
        };
        eventually_in(millis(120_000), &what, is_done).await;
    };
    let mut stopped = Vec::new();
    for n in 1..=SCALE_INS {
        done(n * JOBS / (SCALE_INS + 5)).await;
        let newest = workers.pop().unwrap();
        newest.signal("TERM");
        stopped.push(newest);
    }
    for worker in stopped {
        let ended = worker.done().await;
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    }
    done(JOBS).await;

    let mut counts = BTreeMap::<String, usize>::new();
    for line in fs::read_to_string(&log).unwrap().lines() {
        *counts.entry(line.to_owned()).or_default() += 1;
    }
    let twice: Vec<_> = counts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert_eq!(counts.len(), 2 * JOBS, "each job has begun and ended");
    assert_eq!(client.stats("t").await.dead_total, 0);
}

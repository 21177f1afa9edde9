use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::work_rig::{gone, signal};
use super::{Ran, command, finish};
use crate::harness::{eventually, within};

/// The demo has a server of its own.
const NOBODY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 1);

/// Runs the demo; what it leaves behind lies in the first directory.
async fn demo(temporary: &Path, args: &[&str]) -> Ran {
    let mut command = command(NOBODY, args);
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("TMPDIR", temporary);
    finish(command.spawn().unwrap()).await
}

/// A directory with some files that a careless script would trip over.
fn tree() -> TempDir {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir(tree.path().join("sub dir")).unwrap();
    for name in ["plain", "with space", "it's", "$HOME", "-n", "sub dir/ünïcode", "back\\slash"] {
        fs::write(tree.path().join(name), name).unwrap();
    }
    std::os::unix::fs::symlink("plain", tree.path().join("link")).unwrap();
    tree
}

#[tokio::test]
async fn every_job_of_the_tour_comes_to_its_end_and_nothing_stays() {
    let (tree, temporary) = (tree(), tempfile::tempdir().unwrap());
    let shown = demo(temporary.path(), &["demo", tree.path().to_str().unwrap()]).await.ok();
    for says in [
        "$ ringq enqueue files --lines files.txt",
        "$ ringq work reminders mails payments --exec 'sh handler.sh'",
        "mail-1 failed, attempt 1: smtp: connection refused",
        "order-17 is DEAD",
        "$ ringq job redrive payments order-17",
        "order-17 is done, after a failed attempt",
        "$ cat handler.sh\ncase \"$RINGQ_TOPIC\" in\n",
        "`ringq demo --keep` leaves them",
        "after its time",
        "7 hashes for 7 files",
    ] {
        assert!(shown.contains(says), "{says:?} in:\n{shown}");
    }
    let rows = ["files 7 7 0 0", "reminders 1 1 0 0", "mails 1 1 0 0", "payments 1 1 0 0"];
    let spaced: Vec<String> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in rows {
        assert!(spaced.iter().any(|line| line == row), "{row:?} in:\n{shown}");
    }
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Its workers would look for their server for ever.
#[tokio::test]
async fn a_signal_ends_its_server_and_its_workers_too() {
    let (tree, temporary) = (tree(), tempfile::tempdir().unwrap());
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let mut command = command(NOBODY, &["demo", tree.path().to_str().unwrap()]);
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("TMPDIR", temporary.path());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        loop {
            let line = within("a line", lines.next_line()).await.unwrap().expect("the workers");
            if line.contains("$ ringq work reminders") {
                break;
            }
        }
        // The last act waits for a job that is due in seconds.
        let children = format!("/proc/{0}/task/{0}/children", child.id().unwrap());
        let workers = eventually("both workers", async || {
            let workers: Vec<String> = fs::read_to_string(&children)
                .unwrap()
                .split_whitespace()
                .map(str::to_owned)
                .collect();
            (workers.len() == 2).then_some(workers)
        })
        .await;
        signal(&child.id().unwrap().to_string(), name);
        assert_eq!(finish(child).await.code, code);
        for worker in workers {
            gone(&worker).await;
        }
        let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn what_is_kept_is_named_and_there() {
    let (tree, temporary) = (tree(), tempfile::tempdir().unwrap());
    let shown =
        demo(temporary.path(), &["demo", "--keep", tree.path().to_str().unwrap()]).await.ok();
    let last = shown.lines().last().unwrap();
    let kept = last.strip_prefix("The store and the results are in ").expect(last);
    let hashes = fs::read_to_string(Path::new(kept).join("hashes.txt")).unwrap();
    assert_eq!(hashes.lines().count(), 7, "{hashes}");
    assert!(Path::new(kept).join("ringq.db").exists());
}

#[tokio::test]
async fn a_directory_without_files_is_a_mistake() {
    let temporary = tempfile::tempdir().unwrap();
    let empty = tempfile::tempdir().unwrap();
    let hint = "name a directory with some files";
    let args = ["demo", empty.path().to_str().unwrap()];
    demo(temporary.path(), &args).await.fails(2, &["there are none", hint]);
    let missing = ["demo", "/no/such/directory"];
    demo(temporary.path(), &missing).await.fails(2, &["no such file or directory", hint]);
}

//! A primary, its replica, and three sentinels that watch both.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::time::eventually_in;
use super::{Redis, eventually};

/// Name of the primary in the sentinels.
const PRIMARY: &str = "main";
/// Number of sentinels: two must agree.
const SENTINELS: usize = 3;
/// Time for which a process may not answer before a sentinel takes it for dead: no stall of a busy machine begins a
/// failover that the test did not cause.
const PATIENT_MS: u64 = 60_000;
/// Longest time until a former primary follows: the sentinels reconfigure it some ten seconds after a failover, and
/// then it copies.
const COPIED_MAX: Duration = Duration::from_secs(45);

/// A primary, its replica and their sentinels. They end with the test.
pub(crate) struct Sentinel {
    /// The primary at the start, and its replica.
    nodes: Vec<Redis>,
    sentinels: Vec<Redis>,
}

// === impl Sentinel ===

impl Sentinel {
    /// Starts all processes and waits until they have found each other; `None` when there is no redis-server.
    pub(crate) async fn start() -> Option<Sentinel> {
        let plain = ["--save", "", "--appendonly", "no", "--databases", "1024"];
        // Without this the first copy begins seconds after it was requested.
        let plain = [&plain[..], &["--repl-diskless-sync-delay", "0"]].concat();
        let primary = Redis::with(&plain).await?;
        let of = format!("127.0.0.1 {}", primary.port());
        let replica = Redis::with(&[&plain[..], &["--replicaof", &of]].concat()).await?;
        eventually("the replica has a copy", async || {
            let info = replica.command(&["INFO", "replication"]).await;
            info.contains("master_link_status:up").then_some(())
        })
        .await;
        let settings = format!(
            "sentinel monitor {PRIMARY} {of} 2\n\
             sentinel down-after-milliseconds {PRIMARY} {PATIENT_MS}\n\
             sentinel failover-timeout {PRIMARY} 5000\n"
        );
        let mut sentinels = Vec::new();
        for _ in 0..SENTINELS {
            sentinels.push(Redis::sentinel(&settings).await?);
        }
        let all = Sentinel { nodes: vec![primary, replica], sentinels };
        all.settled().await;
        Some(all)
    }

    /// Returns the url by which a client asks for the primary.
    pub(crate) fn url(&self) -> String {
        let hosts = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.port()));
        format!("redis+sentinel://{}/{PRIMARY}", hosts.collect::<Vec<_>>().join(","))
    }

    /// Returns the sentinels.
    pub(crate) fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// Waits until every sentinel has found all others and a replica that can take over.
    pub(crate) async fn settled(&self) {
        eventually_in(COPIED_MAX, "the replica has a copy", async || {
            let info = self.primary().await?.command(&["INFO", "replication"]).await;
            info.contains("state=online").then_some(())
        })
        .await;
        for sentinel in &self.sentinels {
            eventually("the sentinels have found each other", async || {
                let info = sentinel.command(&["INFO", "sentinel"]).await;
                let good = format!("status=ok,address=127.0.0.1:{}", self.primary().await?.port());
                let whole = info.contains(&good) && info.contains("slaves=1,sentinels=3");
                whole.then_some(())
            })
            .await;
        }
    }

    /// Returns the node that the sentinels report as the primary.
    pub(crate) async fn primary(&self) -> Option<&Redis> {
        let port =
            self.sentinels[0].ask_list(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY]).await;
        self.nodes.iter().find(|node| port.get(1) == Some(&node.port().to_string()))
    }

    /// Waits until the replica has everything that the primary has.
    pub(crate) async fn replicated(&self) {
        let primary = self.primary().await.unwrap();
        let written = primary.info("replication", "master_repl_offset").await;
        eventually("the replica has it all", async || {
            let info = primary.command(&["INFO", "replication"]).await;
            let copied = info.split("offset=").nth(1)?.split(',').next()?.parse::<u64>().ok()?;
            (copied >= written).then_some(())
        })
        .await;
    }

    /// Makes the replica take over, as an operator would.
    pub(crate) async fn fail_over(&self) {
        let before = self.primary().await.unwrap().port();
        self.replace(before).await;
    }

    /// Kills the primary and waits until the other node has taken over.
    pub(crate) async fn kill_primary(&mut self) {
        let before = self.primary().await.unwrap().port();
        self.nodes.iter_mut().find(|node| node.port() == before).unwrap().kill();
        self.replace(before).await;
    }

    /// Begins a failover, and waits until another node than this one is the primary.
    async fn replace(&self, before: u16) {
        eventually("the sentinels begin a failover", async || {
            let answer = self.sentinels[0].command(&["SENTINEL", "FAILOVER", PRIMARY]).await;
            (answer == "+OK").then_some(())
        })
        .await;
        eventually("another node is the primary", async || {
            self.primary().await.filter(|node| node.port() != before).map(drop)
        })
        .await;
    }

    /// Ends the replica and waits until every sentinel reports it as missing. From then on they take a process for dead
    /// after a second.
    pub(crate) async fn kill_replica(&mut self) {
        for sentinel in &self.sentinels {
            let set = ["SENTINEL", "SET", PRIMARY, "down-after-milliseconds", "1000"];
            assert_eq!(sentinel.command(&set).await, "+OK");
        }
        let primary = self.primary().await.unwrap().port();
        self.nodes.iter_mut().find(|node| node.port() != primary).unwrap().kill();
        eventually("the replica is missed", async || {
            self.logs().all(|log| log.contains("+sdown slave")).then_some(())
        })
        .await;
    }

    /// Waits until a sentinel has found no replica that can replace a primary that does not answer.
    pub(crate) async fn gives_up(&self) {
        eventually("a failover is given up", async || {
            self.logs().any(|log| log.contains("-failover-abort-no-good-slave")).then_some(())
        })
        .await;
    }

    fn logs(&self) -> impl Iterator<Item = String> {
        self.sentinels.iter().map(|one| fs::read_to_string(one.dir().join("log")).unwrap())
    }

    /// Ends all processes with the test process instead of with the fixture, which lives as long.
    pub(crate) fn outlive_tests(&self) {
        let all = || self.nodes.iter().chain(&self.sentinels);
        let pids: Vec<_> = all().map(|server| server.pid().to_string()).collect();
        let dirs = all().map(|server| server.dir().display().to_string());
        let script = format!(
            "read _; kill -9 {}; rm -rf {}",
            pids.join(" "),
            dirs.collect::<Vec<_>>().join(" ")
        );
        let mut watch = Command::new("sh");
        watch
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // The pipe closes when this process ends, in whatever way.
        std::mem::forget(watch.spawn().unwrap().stdin);
    }
}

//! docs/sharding.md: its console blocks run in one shell, whose background jobs are several Redis and servers, on
//! other ports than those of the page. Like in the [`tour`](super::tour) each command must print what the page shows.
//! A look at something that takes time is repeated until it does.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::Instant;

use super::page;
use super::shape::matches;
use super::tour::{Step, shows_status, steps};
use crate::harness::{PATIENCE, eventually, free_port, in_ci, millis, within_long};

/// Ports of the page; the last two are the defaults of a server.
const PORTS: [&str; 9] = ["6401", "6402", "6403", "6404", "6405", "7710", "7711", "7700", "7701"];
/// Commands that change nothing, and may be repeated.
const LOOKS: [&str; 3] = ["ringq shard list", "ringq job get", "redis-cli"];
/// Time limit of a command that waits for a draining shard: until no call that writes to it can be in flight.
const DRAINED: Duration = Duration::from_secs(150);
/// Commands after which a shard, or its machine, is gone, and no server needs it.
const REMOVED: [&str; 2] = ["kill %3; wait %3", "kill %1; wait %1"];
/// Interval at which servers check the replicas of a Redis, and a moment more.
const LOOKED: Duration = Duration::from_secs(11);
/// Note of a command on a busy machine.
const WAITS: &str = "ringq: no answer yet, waiting for up to ";
/// Marker behind the output of each command, before its status.
const END: &str = "--- end";

/// A shell with piped input.
struct Shell {
    _directory: TempDir,
    /// Ports of the page and the ports that replace them.
    ports: Vec<(&'static str, String)>,
    shell: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    status: i32,
}

// === impl Shell ===

impl Shell {
    fn start() -> Shell {
        let directory = tempfile::Builder::new().prefix("ringq-scale-").tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        std::os::unix::fs::symlink(root.join("deploy"), directory.path().join("deploy")).unwrap();
        let ports: Vec<_> = PORTS.iter().map(|port| (port, free_port())).collect();
        let ports: Vec<_> =
            ports.into_iter().map(|(port, used)| (*port, used.to_string())).collect();
        let at = |index: usize| format!("127.0.0.1:{}", ports[index].1);
        let binary = Path::new(env!("CARGO_BIN_EXE_ringq")).parent().unwrap();
        #[expect(clippy::disallowed_methods, reason = "the path of a shell")]
        let path = std::env::var("PATH").unwrap_or_default();
        let mut bash = tokio::process::Command::new("bash");
        bash.args(["--noprofile", "--norc"]).current_dir(directory.path());
        bash.env("PATH", format!("{}:{path}", binary.display()));
        bash.env("RINGQ_LISTEN", at(7)).env("RINGQ_HTTP_LISTEN", at(8));
        bash.env("RINGQ_SERVER", format!("http://{}", at(7)));
        bash.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // One process group with everything that it starts, killed together.
        let mut shell = bash.process_group(0).kill_on_drop(true).spawn().unwrap();
        let input = shell.stdin.take().unwrap();
        let output = BufReader::new(shell.stdout.take().unwrap()).lines();
        Shell { _directory: directory, ports, shell, input, output, status: 0 }
    }

    /// Runs a step, again if it is a look; `None` if it goes as the page shows, else the difference.
    async fn take(&mut self, step: &Step, may_fail: bool) -> Option<String> {
        let is_look = LOOKS.iter().any(|look| step.command.starts_with(look));
        let (before, deadline) = (self.status, Instant::now() + PATIENCE);
        loop {
            self.status = before;
            let got = self.type_in(&step.command).await;
            if (self.status == 0 || may_fail) && matches(&step.output, &got) {
                return None;
            }
            if !is_look || Instant::now() > deadline {
                let (want, got) = (step.output.join("\n"), got.join("\n"));
                let (command, status) = (&step.command, self.status);
                return Some(format!("$ {command}\n--- page\n{want}\n--- exit {status}\n{got}"));
            }
            tokio::time::sleep(millis(100)).await;
        }
    }

    /// Runs a command and returns its output, with the ports of the page.
    async fn type_in(&mut self, command: &str) -> Vec<String> {
        let command = replace(command, self.ports.iter().map(|(port, used)| (*port, &**used)));
        let status = self.status;
        let text =
            format!("{{ (exit {status})\n{command}\n}} 2>&1 < /dev/null\necho \"{END} $?\"\n");
        self.input.write_all(text.as_bytes()).await.unwrap();
        let mut lines = Vec::new();
        loop {
            let patience = if command.ends_with("--wait") { DRAINED } else { PATIENCE };
            let line = within_long(patience, &command, self.output.next_line()).await.unwrap();
            let line = line.expect("the shell has ended");
            if let Some(status) = line.strip_prefix(END) {
                self.status = status.trim().parse().unwrap();
                break;
            }
            if !line.starts_with(WAITS) {
                lines.push(replace(&line, self.ports.iter().map(|(port, used)| (&**used, *port))));
            }
        }
        if command.ends_with('&') {
            self.until_it_listens(&command).await;
        }
        lines
    }

    /// Waits until a background process listens.
    async fn until_it_listens(&self, command: &str) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let after = |flag| words.windows(2).find(|pair| pair[0] == flag).map(|pair| pair[1]);
        let port = after("--port").or_else(|| after("--listen")?.rsplit(':').next());
        let port = port.unwrap_or(&self.ports[7].1);
        eventually("it listens", async || {
            TcpStream::connect(format!("127.0.0.1:{port}")).await.ok()
        })
        .await;
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if let Some(group) = self.shell.id() {
            let _ = Command::new("kill").args(["-9", "--", &format!("-{group}")]).status();
        }
    }
}

fn replace<'a>(text: &str, pairs: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    pairs.fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_scale_out_print_what_the_page_shows() {
    for tool in ["redis-server", "redis-cli"] {
        if let Err(error) = Command::new(tool).arg("--version").stdout(Stdio::null()).status() {
            assert!(!in_ci(), "{tool} is required with CI=true: {error}");
            println!("skipped: there is no {tool} ({error})");
            return;
        }
    }
    let steps = steps(&page("docs/sharding.md"), "scale-out");
    assert!(steps.len() >= 30, "{} commands are not all", steps.len());
    let (mut shell, mut removed) = (Shell::start(), 0);
    for (index, step) in steps.iter().enumerate() {
        let wrong = shell.take(step, shows_status(steps.get(index + 1))).await;
        assert!(wrong.is_none(), "{}", wrong.unwrap());
        if REMOVED.contains(&&*step.command) {
            removed += 1;
            tokio::time::sleep(LOOKED).await;
            let alarms = shell.type_in("grep -hE 'WARN|ERROR' one.log two.log").await;
            assert!(alarms.is_empty(), "{}", alarms.join("\n"));
        }
    }
    assert_eq!(removed, REMOVED.len());
}

//! `ringq demo`: the five-minute tour as one command, on a store that is thrown away.
//!
//! What is shown is what runs: every `$ ringq …` line is a process of this very program, against a
//! server in this one. [`stage`] has the server, the directory and those processes, [`watch`] looks
//! at what becomes of the jobs, [`show`] tells it.

mod files;
mod show;
mod stage;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::connect;
use super::exit::Failure;
use show::Show;
use stage::Stage;
use watch::{Story, Watch};

/// Below the help.
const EXAMPLES: &str = "\
Examples:
  ringq demo                 the tour, with one job per file of this directory
  ringq demo /usr/share/doc  the same on a larger tree
  ringq demo src --keep      leave the store and the results behind";

/// The topic of the files.
const FILES: &str = "files";
/// How soon the delayed job is due.
const DELAY: Duration = Duration::from_secs(3);
/// Paths per run of the hashing command.
const BATCH: &str = "100";

/// Hashes the paths that come as lines.
const HASH: &str = "tr '\\n' '\\0' | xargs -0 sha256sum --";
/// Where there is no `sha256sum`.
const HASH_PERL: &str = "tr '\\n' '\\0' | xargs -0 shasum -a 256 --";
/// Works the three other topics: one fails once, one fails until its service is up again.
const HANDLER: &str = r#"case "$RINGQ_TOPIC" in
  mails)    test "$RINGQ_ATTEMPT" -gt 1 || { echo 'smtp: connection refused' >&2; exit 1; } ;;
  payments) test -e card-service-is-up  || { echo 'card service: out of order' >&2; exit 1; } ;;
esac
"#;
const HANDLER_FILE: &str = "handler.sh";
const SERVICE_FILE: &str = "card-service-is-up";

/// The delayed job, the one that is retried, the one that dies.
const REMINDER: (&str, &str) = ("reminders", "reminder-1");
const MAIL: (&str, &str) = ("mails", "mail-1");
const PAYMENT: (&str, &str) = ("payments", "order-17");

/// `ringq demo`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Demo {
    /// Hash the files below this directory, one job each
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Leave the store, the hashes and the logs behind, and say where
    #[arg(long)]
    keep: bool,
}

// === impl Demo ===

impl Demo {
    pub(super) fn run(self) -> Result<(), Failure> {
        let files = files::below(&self.directory)?;
        connect::block_on(async {
            let mut stage = Stage::build(self.keep).await?;
            let result = tokio::select! {
                result = tour(&mut stage, &files) => result,
                code = connect::asked_to_end() => Err(Failure::told(code)),
            };
            stage.clear().await;
            result
        })
    }
}

/// The acts, in order.
async fn tour(stage: &mut Stage, files: &[String]) -> Result<(), Failure> {
    let mut show = Show::new(files.len() as u64);
    show.say(&format!(
        "A server listens on {}, its store is thrown away at the end.",
        stage.url()
    ))?;
    show.say("Every `$ ringq` line is run as it stands here, in a directory of its own.")?;
    enqueue(stage, &mut show, files).await?;
    start_workers(stage, &mut show).await?;

    let mut watch = Watch::new(stage.client(), [REMINDER, MAIL, PAYMENT]);
    show.heading("What becomes of them")?;
    show.watch();
    loop {
        let seen = watch.look().await?;
        show.progress(&seen);
        for story in &seen.stories {
            show.story(story)?;
        }
        if seen.stories.iter().any(|story| matches!(story, Story::Dead { .. })) {
            redrive(stage, &mut show).await?;
        }
        if watch.is_over(files.len() as u64) {
            break;
        }
        stage.tick().await?;
    }
    show.finish(&watch.summary(stage.hashes()?).await?, files.len() as u64, stage.kept())
}

async fn enqueue(stage: &mut Stage, show: &mut Show, files: &[String]) -> Result<(), Failure> {
    show.heading("One job for each line of files.txt: a path is the payload, its hash the id")?;
    stage.write("files.txt", &files.join("\n"))?;
    let quiet = ["--quiet", "--retention", "1h"];
    let mut lines = vec!["enqueue", FILES, "--lines", "files.txt", "--id-from-payload"];
    lines.extend(quiet);
    stage.command(show, &lines).await?;

    show.heading("One for later, one that fails at first, one that may fail only once")?;
    let delay = format!("{}s", DELAY.as_secs());
    for ((topic, id), payload, flags) in [
        (REMINDER, "call ada", ["--delay", delay.as_str()]),
        (MAIL, "hello ada", ["--retry-delays", "1s"]),
        (PAYMENT, "12.50 EUR", ["--max-attempts", "1"]),
    ] {
        let mut line = vec!["enqueue", topic, payload, "--id", id];
        line.extend(flags);
        line.extend(quiet);
        stage.command(show, &line).await?;
    }
    Ok(())
}

async fn start_workers(stage: &mut Stage, show: &mut Show) -> Result<(), Failure> {
    show.heading("Workers: any command, its exit code decides")?;
    stage.write(HANDLER_FILE, HANDLER)?;
    show.file(HANDLER_FILE, HANDLER)?;
    let hash = if stage::has("sha256sum").await { HASH } else { HASH_PERL };
    stage.start(
        show,
        &["work", FILES, "--exec", hash, "--batch", BATCH, "--concurrency", "2"],
        Some("hashes.txt"),
    )?;
    let handler = format!("sh {HANDLER_FILE}");
    let topics = [REMINDER.0, MAIL.0, PAYMENT.0];
    let mut line = vec!["work"];
    line.extend(topics);
    line.extend(["--exec", &handler]);
    stage.start(show, &line, None)
}

/// The service is mended, and the job gets another chance.
async fn redrive(stage: &mut Stage, show: &mut Show) -> Result<(), Failure> {
    stage.write(SERVICE_FILE, "")?;
    show.say("The card service is mended; the dead letter gets another chance:")?;
    stage.command(show, &["job", "redrive", PAYMENT.0, PAYMENT.1]).await
}

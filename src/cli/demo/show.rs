//! Tells the tour: lines that stay, and on a terminal a bar that moves below them.

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use super::super::exit::{self, Failure};
use super::super::output::{Out, Table};
use super::watch::{Seen, Story, Summary};

const BAR: &str = "  files {bar:30} {pos}/{len} hashed, {per_sec}, {msg}";

pub(super) struct Show {
    out: Out,
    bar: ProgressBar,
    begin: Instant,
}

// === impl Show ===

impl Show {
    pub(super) fn new(files: u64) -> Show {
        let out = Out::new();
        // Shown once there is something to watch.
        let bar = ProgressBar::with_draw_target(Some(files), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(BAR) {
            bar.set_style(style);
        }
        Show { out, bar, begin: Instant::now() }
    }

    /// A line.
    pub(super) fn say(&mut self, text: &str) -> Result<(), Failure> {
        // The bar is taken away first and comes back with the next look.
        let (bar, out) = (&self.bar, &mut self.out);
        bar.suspend(|| out.line(text).and_then(|()| out.flush()))
    }

    /// What the next lines are about.
    pub(super) fn heading(&mut self, text: &str) -> Result<(), Failure> {
        let text = self.out.heading(text);
        self.say(&format!("\n{text}"))
    }

    /// A command, as one would type it.
    pub(super) fn command(&mut self, line: &[&str], out: Option<&str>) -> Result<(), Failure> {
        let words: Vec<String> = line.iter().map(|word| quoted(word)).collect();
        let out = out.map(|name| format!(" > {name} &")).unwrap_or_default();
        self.say(&format!("$ ringq {}{out}", words.join(" ")))
    }

    /// A file that was just written.
    pub(super) fn file(&mut self, name: &str, text: &str) -> Result<(), Failure> {
        self.say(&format!("$ cat {name}\n{}", text.trim_end()))
    }

    /// What a command printed.
    pub(super) fn output(&mut self, stdout: &[u8]) -> Result<(), Failure> {
        String::from_utf8_lossy(stdout).lines().try_for_each(|line| self.say(line))
    }

    /// From here on a terminal shows how far the files are.
    pub(super) fn watch(&mut self) {
        if self.out.is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stdout());
        }
    }

    /// The numbers of the files.
    pub(super) fn progress(&mut self, seen: &Seen) {
        let files = &seen.files;
        self.bar.set_position(u64::try_from(files.succeeded_total).unwrap_or_default());
        self.bar.set_message(format!("{} ready, {} running", files.ready, files.running));
    }

    /// A turn in the life of a job.
    pub(super) fn story(&mut self, story: &Story) -> Result<(), Failure> {
        let line = match story {
            Story::Scheduled { id } => format!("{id} waits for its time"),
            Story::Failed { id, error, attempt } => {
                format!("{id} failed, attempt {attempt}: {error}")
            }
            Story::Dead { id, error } => format!("{id} is DEAD, its attempts are used up: {error}"),
            Story::Succeeded { id, late: Some(late), .. } => {
                format!("{id} is done, begun {} after its time", millis(*late))
            }
            Story::Succeeded { id, attempts: 0 | 1, late: None } => format!("{id} is done"),
            Story::Succeeded { id, attempts: 2, late: None } => {
                format!("{id} is done, after a failed attempt")
            }
            Story::Succeeded { id, attempts, late: None } => {
                format!("{id} is done, after {} failed attempts", attempts - 1)
            }
        };
        let time = self.begin.elapsed().as_secs_f64();
        self.say(&format!("  {time:4.1} s  {line}"))
    }

    /// The end: whether the books balance, and where everything lies if it is kept.
    pub(super) fn finish(
        mut self,
        summary: &Summary,
        files: u64,
        kept: Option<&Path>,
    ) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        self.heading("The books")?;
        let mut table = Table::new(["TOPIC", "ENQUEUED", "SUCCEEDED", "DEAD", "LEFT"]);
        for (topic, stats) in &summary.topics {
            let left = stats.scheduled + stats.ready + stats.running + stats.backoff;
            let numbers = [stats.enqueued_total, stats.succeeded_total, stats.dead, left];
            let [enqueued, succeeded, dead, left] = numbers.map(|number| number.to_string());
            table.row([(*topic).to_owned(), enqueued, succeeded, dead, left]);
        }
        table.print(&mut self.out)?;
        self.say(&format!("\n{} hashes for {files} files", summary.hashes))?;
        if (summary.hashes as u64) < files {
            return Err(Failure::new(exit::FAILED, "a file was hashed without a result"));
        }
        match kept {
            Some(path) => self.say(&format!("The store and the results are in {}", path.display())),
            None => {
                self.say(
                    "The store and the files are thrown away; `ringq demo --keep` leaves them.",
                )?;
                self.say("A server with a store that stays: `ringq serve`")
            }
        }
    }
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

/// A word as the shell wants it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=%+,@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else if word.contains('\'')
        && !["\"", "$", "`", "!", r"\\"].iter().any(|it| word.contains(it))
    {
        format!("\"{word}\"")
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_a_shell_would_split_them() {
        assert_eq!(quoted("--delay"), "--delay");
        assert_eq!(quoted("call ada"), "'call ada'");
        assert_eq!(quoted(r"tr '\n' x"), r#""tr '\n' x""#);
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}

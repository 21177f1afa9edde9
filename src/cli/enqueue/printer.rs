//! Output of `--lines` on stdout: the id of each job, or a row of JSON for each line.

use super::answer::row;
use super::exit::CommandFailure;
use super::output::{JsonList, StdoutWriter};
use crate::client::{EnqueueReply, Error};

/// Printer that stops when its reader has gone.
pub(super) struct LinesPrinter {
    list: Option<JsonList>,
    /// Held, because calls are in flight while its reader makes this process wait.
    out: StdoutWriter,
    /// Set with `--quiet`, and after the first failure.
    is_mute: bool,
}

// === impl LinesPrinter ===

impl LinesPrinter {
    /// Creates a printer of a JSON list or of ids; with `quiet` it prints nothing.
    pub(super) fn new(is_json: bool, quiet: bool) -> LinesPrinter {
        let list = (is_json && !quiet).then(JsonList::new);
        LinesPrinter { list, out: StdoutWriter::held(), is_mute: quiet }
    }

    /// Prints the result of a line; an id is printed only if there is one.
    pub(super) fn answer(
        &mut self,
        answer: &Result<EnqueueReply, Error>,
    ) -> Result<(), CommandFailure> {
        self.print(|list, out| match (list, answer) {
            (Some(list), answer) => list.row(out, &row(answer)),
            (None, Ok(job)) => out.write_line(&job.id),
            (None, Err(_)) => Ok(()),
        })
    }

    /// Makes everything printed so far visible.
    pub(super) async fn flush(&mut self) -> Result<(), CommandFailure> {
        if self.is_mute {
            return Ok(());
        }
        let printed = self.out.flush_in_turn().await;
        self.is_mute = printed.is_err();
        printed
    }

    /// Ends the output.
    pub(super) async fn end(&mut self) -> Result<(), CommandFailure> {
        if let Some(list) = self.list.take() {
            self.print(|_, out| list.close(out))?;
        }
        self.flush().await
    }

    /// Prints something, unless a print has failed before.
    fn print(
        &mut self,
        print: impl FnOnce(&mut Option<JsonList>, &mut StdoutWriter) -> Result<(), CommandFailure>,
    ) -> Result<(), CommandFailure> {
        if self.is_mute {
            return Ok(());
        }
        let printed = print(&mut self.list, &mut self.out);
        self.is_mute = printed.is_err();
        printed
    }
}

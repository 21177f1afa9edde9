//! What `--lines` says on stdout: the id of each job, or a row of JSON for each line.

use super::answer::row;
use super::exit::CommandFailure;
use super::output::{JsonList, StdoutWriter};
use crate::client::{EnqueueReply, Error};

/// Prints as long as somebody reads.
pub(super) struct LinesPrinter {
    list: Option<JsonList>,
    out: StdoutWriter,
    /// Nothing is printed, or nothing more.
    is_mute: bool,
}

// === impl Printer ===

impl LinesPrinter {
    /// As a list of JSON, or ids; `quiet`: neither.
    pub(super) fn new(is_json: bool, quiet: bool) -> LinesPrinter {
        let list = (is_json && !quiet).then(JsonList::new);
        LinesPrinter { list, out: StdoutWriter::new(), is_mute: quiet }
    }

    /// What became of a line; an id is printed only where there is one.
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

    /// Shows what was printed so far.
    pub(super) fn flush(&mut self) -> Result<(), CommandFailure> {
        self.print(|_, out| out.flush())
    }

    /// Nothing more comes.
    pub(super) fn end(&mut self) -> Result<(), CommandFailure> {
        let list = self.list.take();
        self.print(|_, out| {
            list.map_or(Ok(()), |list| list.end(out))?;
            out.flush()
        })
    }

    /// After a failure nothing is tried again.
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

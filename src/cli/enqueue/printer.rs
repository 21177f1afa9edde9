//! What `--lines` says on stdout: the id of each job, or a row of JSON for each line.

use super::answer::row;
use super::exit::Failure;
use super::output::{JsonList, Out};
use crate::client::{Enqueued, Error};

/// Prints as long as somebody reads.
pub(super) struct Printer {
    list: Option<JsonList>,
    out: Out,
    /// Nothing is printed, or nothing more.
    is_mute: bool,
}

// === impl Printer ===

impl Printer {
    /// As a list of JSON, or ids; `quiet`: neither.
    pub(super) fn new(is_json: bool, quiet: bool) -> Printer {
        let list = (is_json && !quiet).then(JsonList::new);
        Printer { list, out: Out::new(), is_mute: quiet }
    }

    /// What became of a line; an id is printed only where there is one.
    pub(super) fn answer(&mut self, answer: &Result<Enqueued, Error>) -> Result<(), Failure> {
        self.print(|list, out| match (list, answer) {
            (Some(list), answer) => list.row(out, &row(answer)),
            (None, Ok(job)) => out.line(&job.id),
            (None, Err(_)) => Ok(()),
        })
    }

    /// Shows what was printed so far.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        self.print(|_, out| out.flush())
    }

    /// Nothing more comes.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        let list = self.list.take();
        self.print(|_, out| {
            list.map_or(Ok(()), |list| list.end(out))?;
            out.flush()
        })
    }

    /// After a failure nothing is tried again.
    fn print(
        &mut self,
        print: impl FnOnce(&mut Option<JsonList>, &mut Out) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if self.is_mute {
            return Ok(());
        }
        let printed = print(&mut self.list, &mut self.out);
        self.is_mute = printed.is_err();
        printed
    }
}

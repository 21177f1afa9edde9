//! `--lines`: a job for each line, in batches, several of them under way.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

use super::Enqueue;
use super::account::{Account, Repeat, summary};
use super::again::Again;
use super::answer::{answers, is_in_doubt, is_left_out, is_of_the_line, no_answer, too_long};
use super::away::Away;
use super::connect::{self, Connection};
use super::exit::{self, Failure, complain, note, trying_again};
use super::input::{Batch, Line, Source, digest, payload};
use super::ledger::{Ledger, Lines};
use super::printer::Printer;
use super::progress::Progress;
use super::stop::Stop;
use super::times::remark_past;
use crate::client::{Enqueued, Error, Producer, Repeats};
use crate::domain::limit;
use crate::pb::{EnqueueOutcome, GetServerInfoRequest, JobSpec, Payload};

/// Calls under way: the server groups what comes together, and writes one while another is sent.
const CALLS: usize = 8;
/// How much longer than repeats go on their answers are waited for: the last call has some seconds in which
/// the server finds out what a shard has done, and only then says it of each line.
const SLOW_ANSWER: Duration = Duration::from_secs(7);
/// How long answers are waited for after Ctrl-C or SIGTERM.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Ids that are told on a terminal: more of them nobody copies from there. What is redirected gets them all.
const IDS_ON_TERMINAL: usize = 20;

/// Enqueues each line.
pub(super) async fn run(enqueue: &Enqueue, file: &Path) -> Result<(), Failure> {
    let template = enqueue.template()?;
    let source = Source::open(file)?;
    let connection = enqueue.connect.connection()?;
    if !enqueue.quiet {
        remark_past(enqueue.spec.at());
    }
    tokio::select! {
        result = reach(&connection) => result?,
        code = connect::asked_to_end() => return Err(Failure::told(code)),
    }
    let producer = connection.client().producer();
    let producer = producer
        .on_conflict(enqueue.identity.policy())
        .durability(enqueue.identity.durability())
        .repeat_for(connection.timeout());
    // The same for each line and in each run, so that another run changes nothing.
    let producer = match &enqueue.identity.request_id {
        Some(request_id) => producer.request_id(request_id),
        None => producer,
    };
    // Only the first is told.
    let (repeats, repeated) = mpsc::channel(1);
    let import = Import {
        enqueue,
        connection,
        producer,
        template,
        file: source.file.clone(),
        name: source.name.clone(),
        under_way: BTreeMap::new(),
        ledger: Ledger::default(),
        progress: Progress::new(source.size, enqueue.quiet),
        printer: Printer::new(enqueue.output.is_json(), enqueue.quiet),
        stop: Stop::new(CALLS),
        away: Away::default(),
        repeats,
        told_of_json: enqueue.quiet,
    };
    import.run(source, repeated).await
}

/// Fails at once where no server answers, instead of repeating the first batch for long.
async fn reach(connection: &Connection) -> Result<(), Failure> {
    let request = connection.request(GetServerInfoRequest {});
    let mut admin = connection.client().admin();
    match connection.ask(admin.get_server_info(request)).await {
        Err(error) if error.is_unavailable() || error.is_no_grpc() => {
            Err(connection.failure("cannot enqueue", &error))
        }
        // Who may enqueue need not be one who may ask this.
        _ => Ok(()),
    }
}

/// The answers to a batch, in its order.
struct Answered {
    /// The number of each line, and what became of it.
    lines: Vec<(u64, Result<Enqueued, Error>)>,
    offset: u64,
}

/// A batch that was sent.
struct Call {
    lines: Lines,
    /// Until it is its turn.
    answered: Option<Answered>,
}

/// One run of `--lines`.
struct Import<'a> {
    enqueue: &'a Enqueue,
    connection: Connection,
    producer: Producer,
    template: JobSpec,
    /// None: no command can read it again by its name.
    file: Option<String>,
    /// Of the input, for messages.
    name: String,
    /// By number: answers are told in the order of the lines.
    under_way: BTreeMap<u64, Call>,
    ledger: Ledger,
    progress: Progress,
    printer: Printer,
    stop: Stop,
    away: Away,
    /// Hears why lines are sent again.
    repeats: mpsc::Sender<Error>,
    /// That a line is no JSON which looks like it.
    told_of_json: bool,
}

// === impl Import ===

impl Import<'_> {
    async fn run(
        mut self,
        source: Source,
        mut repeated: mpsc::Receiver<Error>,
    ) -> Result<(), Failure> {
        let mut batches = source.batches();
        let mut calls = FuturesUnordered::new();
        let (mut all_read, mut unreadable) = (false, false);
        let mut told_of_repeats = self.enqueue.quiet;
        let asked_to_end = connect::asked_to_end();
        tokio::pin!(asked_to_end);
        // What is under way is waited for also after a failure: it may be in.
        while !calls.is_empty() || (!self.stop.is_decided() && !all_read) {
            tokio::select! {
                code = &mut asked_to_end => {
                    self.interrupt(code);
                    let last = async {
                        while let Some((number, answered)) = calls.next().await {
                            self.answered(number, answered);
                        }
                    };
                    let _ = tokio::time::timeout(LAST_ANSWERS, last).await;
                    break;
                }
                Some((number, answered)) = calls.next() => self.answered(number, answered),
                Some(why) = repeated.recv(), if !told_of_repeats => {
                    told_of_repeats = true;
                    self.tell_of_repeats(&why);
                }
                batch = batches.recv(), if self.takes_more(all_read) => match batch {
                    Some(Ok(batch)) => calls.push(self.send(batch)),
                    Some(Err(problem)) => {
                        unreadable = true;
                        self.stop.read_no_further(self.unreadable(problem));
                    }
                    None => all_read = true,
                },
            }
        }
        // A failure with the last lines.
        all_read |= !unreadable && matches!(batches.try_recv(), Err(TryRecvError::Disconnected));
        self.tell_the_remaining();
        self.end(all_read)
    }

    fn takes_more(&self, all_read: bool) -> bool {
        !all_read && !self.stop.is_decided() && self.under_way.len() < CALLS
    }

    fn interrupt(&mut self, code: u8) {
        // The exit code is that of the signal, and why it had stopped before is not lost.
        if let Some(failure) = self.stop.interrupt(code) {
            self.progress.suspend(|| failure.tell());
        }
    }

    /// Somebody who sees nothing happen wants to know why.
    fn tell_of_repeats(&self, why: &Error) {
        let why = self.connection.failure("not all lines are in yet", why).problem();
        let again = trying_again(self.connection.timeout());
        self.progress.suspend(|| note(&format!("ringq: {why}; {again}")));
    }

    /// What cannot be read is wrong usage only as long as nothing was sent.
    fn unreadable(&self, problem: String) -> Failure {
        match self.ledger.is_begun() {
            true => Failure::new(exit::FAILED, problem),
            false => Failure::usage(problem),
        }
    }

    /// Begins a call; its number is that of its first line.
    fn send(&mut self, batch: Batch) -> BoxFuture<'static, (u64, Answered)> {
        let Batch { lines, offset } = batch;
        let numbers: Vec<u64> = lines.iter().map(|line| line.number).collect();
        let first = numbers.first().copied().unwrap_or_default();
        let last = numbers.last().copied().unwrap_or_default();
        self.ledger.sent(last);
        self.under_way.insert(first, Call { lines: (first, last), answered: None });
        let mut jobs = Vec::with_capacity(lines.len());
        let short: Vec<bool> = lines.iter().map(|line| line.bytes.is_some()).collect();
        jobs.extend(lines.into_iter().filter_map(|line| self.job(line)));
        let (producer, longest) = (self.producer.clone(), self.longest());
        let (stop, away, hear) = (self.stop.no_more(), self.away.clone(), self.repeats.clone());
        Box::pin(async move {
            let hear = |why: &Error| _ = hear.try_send(why.clone());
            let wants = |why: &Error| away.is_worth_a_repeat(why);
            let repeats = Repeats { stop: &stop, hear: &hear, wants: &wants };
            let answers = answers(&producer, jobs, longest, &repeats).await;
            let mut answers = answers.into_iter();
            let answer = |is_short| match is_short {
                true => answers.next().unwrap_or_else(|| Err(no_answer())),
                false => Err(too_long()),
            };
            let answers: Vec<_> = short.into_iter().map(answer).collect();
            (first, Answered { lines: numbers.into_iter().zip(answers).collect(), offset })
        })
    }

    /// Takes what was answered up to the first call that was not.
    fn answered(&mut self, number: u64, answered: Answered) {
        if let Some(call) = self.under_way.get_mut(&number) {
            call.answered = Some(answered);
        }
        while let Some(mut entry) = self.under_way.first_entry()
            && let Some(answered) = entry.get_mut().answered.take()
        {
            entry.remove();
            self.take(answered);
        }
    }

    /// At the end: also what was answered behind calls that were not.
    fn tell_the_remaining(&mut self) {
        for call in std::mem::take(&mut self.under_way).into_values() {
            match call.answered {
                Some(answered) => self.take(answered),
                None => self.ledger.unanswered(call.lines),
            }
        }
    }

    /// The job of a line that is not too long.
    fn job(&mut self, line: Line) -> Option<JobSpec> {
        let payload: Payload = payload(line.bytes?);
        self.tell_of_broken_json(line.number, &payload);
        let identity = &self.enqueue.identity;
        let id = match &identity.request_id {
            _ if identity.id_from_payload => digest(payload.bytes()),
            // As the server would make it, but with the line instead of the place in a call.
            Some(request_id) => format!("r={request_id}={}", line.number),
            None => String::new(),
        };
        let payload = Some(self.enqueue.spec.typed(payload));
        Some(JobSpec { id, payload, ..self.template.clone() })
    }

    /// Once: what is wrong with one line is likely wrong with many.
    fn tell_of_broken_json(&mut self, number: u64, payload: &Payload) {
        if self.told_of_json {
            return;
        }
        if let Some(what) = self.enqueue.spec.broken_json(payload) {
            self.told_of_json = true;
            let line = format!("ringq: line {number} of {} {what}", self.name);
            self.progress.suspend(|| note(&line));
        }
    }

    fn take(&mut self, answered: Answered) {
        let (done, lines) = (self.ledger.count(), answered.lines.len());
        for (line, answer) in answered.lines {
            let printed = self.printer.answer(&answer);
            self.check(printed);
            match answer {
                Ok(job) => {
                    self.away.is_back(&job.shard);
                    self.ledger.enqueued(line, job.outcome == EnqueueOutcome::Unchanged);
                }
                Err(error) => self.fail(line, &error),
            }
        }
        self.stop.call_ended(lines, self.ledger.count() > done);
        self.progress.set(answered.offset, self.ledger.count());
        // So that a reader sees the ids while the next ones are made.
        let flushed = self.printer.flush();
        self.check(flushed);
    }

    /// Where ids cannot be printed no more jobs are made; what is under way is still accounted for.
    fn check(&mut self, printed: Result<(), Failure>) {
        if let Err(failure) = printed {
            self.stop.halt(failure);
        }
    }

    fn fail(&mut self, line: u64, error: &Error) {
        let what = format!("line {line} of {}", self.name);
        if is_of_the_line(error) {
            self.ledger.refused(line);
            let problem = format!("{what}: {}", exit::for_people(error));
            self.progress.suspend(|| complain(&problem));
            return;
        }
        match error.outcome_unknown() {
            true => self.ledger.unsure(line, error.metadata("id")),
            false => self.ledger.missing(line),
        }
        if is_in_doubt(error) {
            // Not what was said last, which may be about a repeat alone.
            let problem = format!("{what} may be enqueued: its shard does not answer");
            if self.stop.doubt(&problem) && !self.enqueue.quiet {
                self.progress.suspend(|| note(&format!("ringq: {problem}; the others are tried")));
            }
        } else if is_left_out(error) {
            self.away.waited_for(error);
            let failure = self.connection.failure(&format!("{what} is not enqueued"), error);
            let problem = failure.problem();
            if self.stop.left_out(failure) && !self.enqueue.quiet {
                self.progress.suspend(|| note(&format!("ringq: {problem}; the others are tried")));
            }
        } else if !self.stop.is_decided() {
            self.stop.halt(self.connection.failure(&format!("stopped at {what}"), error));
        }
    }

    /// How long a call may take: a batch may be sent as two, one after the other.
    fn longest(&self) -> Duration {
        2 * self.connection.timeout() + SLOW_ANSWER
    }

    /// How long from now on the server surely knows the ids that it has named: from the first call in doubt on for
    /// as long as jobs are kept, and at least as long as it recalls them.
    fn ids_live(&self) -> Option<Duration> {
        let since = self.stop.doubt_since()?.checked_sub(self.longest())?;
        let kept = self.template.retention.and_then(|kept| Duration::try_from(kept).ok());
        kept.unwrap_or(limit::TOMBSTONE).checked_sub(since.elapsed())
    }

    fn end(mut self, all_sent: bool) -> Result<(), Failure> {
        let ids_live = self.ids_live();
        let ended = self.printer.end();
        self.check(ended);
        drop(self.progress);
        let Some(failure) = self.stop.failure() else {
            if !self.enqueue.quiet {
                note(&summary(&self.ledger));
            }
            let refused = self.ledger.count_refused() > 0;
            return if refused { Err(Failure::told(exit::FAILED)) } else { Ok(()) };
        };
        failure.tell();
        if !self.ledger.is_any_in() {
            complain("no line is enqueued");
            return Err(Failure::told(failure.code()));
        }
        let account = Account {
            ids_live,
            ledger: &self.ledger,
            topic: &self.enqueue.topic,
            file: self.file.as_deref(),
            repeat: Repeat::of(&self.enqueue.identity),
            again: Again::of_this_process(),
            all_sent,
            ids_shown: if io::stderr().is_terminal() { IDS_ON_TERMINAL } else { usize::MAX },
        };
        // The account is the last line, as the count of a whole run is: the others may be many.
        account.hints().iter().for_each(|hint| note(&format!("  {hint}")));
        complain(&account.state());
        Err(Failure::told(failure.code()))
    }
}

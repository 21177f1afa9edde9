//! `--lines`: enqueues each line of a file as a job, in batches, several calls at once.
//!
//! Answers are taken in the order of the lines: each line before the first unconfirmed one is stored or was rejected
//! with its number. A run that stops prints that line and the flags that resume there. With a request id line N has the
//! id `r=<REQUEST_ID>=<N>`, so that a line which is sent twice is one job as long as its record or tombstone lives. It
//! is not the default: an id of the caller belongs to one shard, and a run without ids goes on while a shard is down.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::EnqueueArgs;
use super::answer::{is_line_error, no_answer_error, send_batch, too_long_error};
use super::connect::{self, ServerConnection};
use super::exit::{self, CommandFailure, print_error, print_note, retry_notice};
use super::input::{InputLine, LineBatch, LineSource, digest, payload};
use super::printer::LinesPrinter;
use super::progress::Progress;
use super::resume::Resume;
use super::times::warn_past_time;
use crate::client::{EnqueueReply, Error, Producer};
use crate::domain::limit::TOMBSTONE;
use crate::pb::{EnqueueOutcome, GetServerInfoRequest, JobSpec, Payload};
use crate::stderr;

/// Calls in flight: the server writes one batch while another is sent.
pub(super) const CALLS: usize = 8;
/// Added to `--timeout` for the last call of a batch: a server that waits for a shard answers within 5 s.
const SLOW_ANSWER: Duration = Duration::from_secs(7);
/// Maximum time that a run which stops waits for the reader of its output.
const END_MAX: Duration = Duration::from_secs(1);
/// Room for a line about a rejected one.
const LINE_ROOM: usize = 4 << 10;

/// Enqueues each line of the file.
pub(super) async fn run(enqueue: &EnqueueArgs, file: &Path) -> Result<(), CommandFailure> {
    exit::queue_stderr()?;
    let first = enqueue.resume.first_line()?;
    let template = enqueue.template()?;
    let source = LineSource::open(file, first)?;
    let connection = enqueue.connect.connection()?;
    if !enqueue.quiet {
        warn_past_time(enqueue.spec.at());
    }
    tokio::select! {
        result = check_server(&connection) => result?,
        code = connect::wait_for_stop_signal() => return Err(CommandFailure::already_reported(code)),
    }
    let producer = connection.client().producer();
    let producer = producer
        .on_conflict(enqueue.identity.policy())
        .durability(enqueue.identity.durability())
        .repeat_for(connection.timeout());
    let producer = match &enqueue.identity.request_id {
        Some(request_id) => producer.request_id(request_id),
        None => producer,
    };
    // Only the first retry is reported.
    let (retries, retried) = mpsc::channel(1);
    let import = Import {
        enqueue,
        producer,
        template,
        name: source.name.clone(),
        first,
        next: first,
        in_flight: BTreeMap::new(),
        counts: Counts::default(),
        progress: Progress::new(source.size, enqueue.quiet),
        printer: LinesPrinter::new(enqueue.output.is_json(), enqueue.quiet),
        retries,
        reported_json: enqueue.quiet,
        nothing_stored: false,
        connection,
    };
    import.run(source, retried).await
}

/// Fails at once if no server answers, instead of retrying the first batch for `--timeout`.
async fn check_server(connection: &ServerConnection) -> Result<(), CommandFailure> {
    let request = connection.request(GetServerInfoRequest {});
    let mut admin = connection.client().admin();
    match connection.try_call(admin.get_server_info(request)).await {
        Err(error) if error.is_unavailable() || error.is_not_grpc() => {
            Err(connection.failure("cannot enqueue", &error))
        }
        // A caller that may enqueue need not be allowed to read the server's information.
        _ => Ok(()),
    }
}

/// Waits for `work`, or for a signal to stop.
async fn stoppable(
    work: impl Future<Output = Result<(), CommandFailure>>,
) -> Result<(), CommandFailure> {
    tokio::select! {
        result = work => result,
        code = connect::wait_for_stop_signal() => {
            let how = if code == exit::TERMINATED { "terminated" } else { "interrupted" };
            Err(CommandFailure::new(code, how))
        }
    }
}

/// Line numbers with their answers, in order.
type Answers = Vec<(u64, Result<EnqueueReply, Error>)>;

/// A batch that was sent and is not confirmed.
struct LinesCall {
    sent: Instant,
    lines: u64,
    /// Bytes of the input up to the end of the batch.
    offset: u64,
    /// None: no answer yet. Kept until all earlier batches are confirmed.
    answers: Option<Answers>,
}

/// Numbers of confirmed lines.
#[derive(Default)]
struct Counts {
    /// Lines that are stored, with those that were stored before.
    enqueued: u64,
    unchanged: u64,
    rejected: u64,
}

/// State of a run of `--lines`.
struct Import<'a> {
    enqueue: &'a EnqueueArgs,
    connection: ServerConnection,
    producer: Producer,
    template: JobSpec,
    /// Name of the input, for messages.
    name: String,
    first: u64,
    /// First line that is not confirmed.
    next: u64,
    /// Calls by their first line.
    in_flight: BTreeMap<u64, LinesCall>,
    counts: Counts,
    progress: Progress,
    printer: LinesPrinter,
    retries: mpsc::Sender<Error>,
    /// Set once a line with malformed JSON was reported.
    reported_json: bool,
    /// Set if the first batch failed as a whole and is certainly not stored, not even in part.
    nothing_stored: bool,
}

// === impl Import ===

impl Import<'_> {
    async fn run(
        mut self,
        source: LineSource,
        retried: mpsc::Receiver<Error>,
    ) -> Result<(), CommandFailure> {
        let result = match stoppable(self.send_all(source, retried)).await {
            Ok(()) => stoppable(self.printer.end()).await,
            Err(failure) => {
                let _ = timeout(END_MAX, self.printer.end()).await;
                Err(failure)
            }
        };
        self.progress.clear();
        let Err(failure) = result else {
            if !self.enqueue.quiet {
                print_note(&self.counts.summary());
            }
            let rejected = self.counts.rejected > 0;
            return if rejected {
                Err(CommandFailure::already_reported(exit::FAILED))
            } else {
                Ok(())
            };
        };
        failure.print();
        self.report_stop();
        Err(CommandFailure::already_reported(failure.code()))
    }

    async fn send_all(
        &mut self,
        source: LineSource,
        mut retried: mpsc::Receiver<Error>,
    ) -> Result<(), CommandFailure> {
        let mut batches = source.batches();
        let mut calls = FuturesUnordered::new();
        let (mut all_read, mut input_error) = (false, None);
        let mut reported_retry = self.enqueue.quiet;
        while !all_read || !calls.is_empty() {
            tokio::select! {
                Some((first, answers)) = calls.next() => self.answered(first, answers).await?,
                Some(error) = retried.recv(), if !reported_retry => {
                    reported_retry = true;
                    self.report_retry(&error);
                }
                batch = batches.recv(), if !all_read && self.may_send() => match batch {
                    Some(Ok(batch)) => calls.push(self.send(batch)),
                    Some(Err(problem)) => (all_read, input_error) = (true, Some(problem)),
                    None => all_read = true,
                },
            }
        }
        match input_error {
            // An input that cannot be read is wrong usage only if nothing was sent.
            Some(problem) if self.next == self.first => {
                self.nothing_stored = true;
                Err(CommandFailure::usage(problem))
            }
            Some(problem) => Err(CommandFailure::new(exit::FAILED, problem)),
            None => Ok(()),
        }
    }

    /// Returns whether another batch may be sent. The first one goes alone: an error that holds for all lines is then
    /// found before others are sent.
    fn may_send(&self) -> bool {
        let calls = if self.next == self.first { 1 } else { CALLS };
        self.in_flight.len() < calls
    }

    fn report_retry(&self, error: &Error) {
        let why = self.connection.failure("not all lines are stored yet", error).problem();
        let again = retry_notice(self.connection.timeout());
        self.progress.suspend(|| print_note(&format!("ringq: {why}; {again}")));
    }

    /// Begins a call, which returns its first line and the answers.
    fn send(&mut self, batch: LineBatch) -> BoxFuture<'static, (u64, Answers)> {
        let LineBatch { lines, offset } = batch;
        let numbers: Vec<u64> = lines.iter().map(|line| line.number).collect();
        let first = numbers.first().copied().unwrap_or_default();
        let count = numbers.len() as u64;
        let call = LinesCall { sent: Instant::now(), lines: count, offset, answers: None };
        self.in_flight.insert(first, call);
        let short: Vec<bool> = lines.iter().map(|line| line.bytes.is_some()).collect();
        let jobs: Vec<JobSpec> = lines.into_iter().filter_map(|line| self.job(line)).collect();
        let (producer, retries) = (self.producer.clone(), self.retries.clone());
        let longest = 2 * self.connection.timeout() + SLOW_ANSWER;
        Box::pin(async move {
            let on_retry = |error: &Error| _ = retries.try_send(error.clone());
            let mut sent = send_batch(&producer, jobs, longest, &on_retry).await.into_iter();
            let answers = short.into_iter().map(|is_short| {
                if is_short {
                    sent.next().unwrap_or_else(|| Err(no_answer_error()))
                } else {
                    Err(too_long_error())
                }
            });
            (first, numbers.into_iter().zip(answers).collect())
        })
    }

    /// Builds the job of a line; None if the line is too long.
    fn job(&mut self, line: InputLine) -> Option<JobSpec> {
        let payload = payload(line.bytes?);
        self.check_json(line.number, &payload);
        let identity = &self.enqueue.identity;
        let id = match &identity.request_id {
            _ if identity.id_from_payload => digest(payload.bytes()),
            Some(request_id) => format!("r={request_id}={}", line.number),
            None => String::new(),
        };
        let payload = Some(self.enqueue.spec.typed(payload));
        Some(JobSpec { id, payload, ..self.template.clone() })
    }

    /// Reports the first line of malformed JSON only: others likely have the same mistake.
    fn check_json(&mut self, number: u64, payload: &Payload) {
        if self.reported_json {
            return;
        }
        if let Some(problem) = self.enqueue.spec.broken_json(payload) {
            self.reported_json = true;
            let line = format!("ringq: line {number} of {} {problem}", self.name);
            self.progress.suspend(|| print_note(&line));
        }
    }

    /// Keeps the answers of a call, and confirms the calls up to the first one without an answer.
    async fn answered(&mut self, first: u64, answers: Answers) -> Result<(), CommandFailure> {
        if let Some(call) = self.in_flight.get_mut(&first) {
            call.answers = Some(answers);
        }
        while let Some(mut entry) = self.in_flight.first_entry()
            && let Some(answers) = entry.get_mut().answers.take()
        {
            self.confirm(answers).await?;
            if let Some((_, call)) = self.in_flight.pop_first() {
                self.progress.set(call.offset, self.counts.enqueued);
            }
        }
        Ok(())
    }

    /// Confirms the lines of a batch up to the first one that failed: prints their ids, then counts them, so that an id
    /// that could not be printed is printed by the run that resumes.
    async fn confirm(&mut self, answers: Answers) -> Result<(), CommandFailure> {
        let is_definite = |answer: &Result<EnqueueReply, Error>| {
            answer.as_ref().is_err_and(|error| !error.outcome_unknown())
        };
        let all_failed = answers.iter().all(|(_, answer)| is_definite(answer));
        let (mut counts, mut next, mut stop) = (Counts::default(), self.next, None);
        for (line, answer) in answers {
            match &answer {
                Ok(job) => counts.stored(job.outcome),
                Err(error) if is_line_error(error) => {
                    counts.rejected += 1;
                    let problem =
                        format!("line {line} of {}: {}", self.name, exit::human_message(error));
                    stderr::wait_for_room(LINE_ROOM).await;
                    self.progress.suspend(|| print_error(&problem));
                }
                Err(error) => {
                    let what = format!("stopped at line {line} of {}", self.name);
                    stop = Some(self.connection.failure(&what, error));
                    self.nothing_stored = all_failed && self.next == self.first;
                    break;
                }
            }
            self.printer.answer(&answer)?;
            next = line + 1;
        }
        self.printer.flush().await?;
        self.counts.add(&counts);
        self.next = next;
        stop.map_or(Ok(()), Err)
    }

    /// Prints how far the run came and how to resume it.
    fn report_stop(&self) {
        if self.nothing_stored {
            print_error("no line is enqueued");
            return;
        }
        let kept = self.template.retention.and_then(|kept| Duration::try_from(kept).ok());
        let oldest = self.in_flight.values().map(|call| call.sent).min();
        let age = oldest.map_or(Duration::ZERO, |sent| sent.elapsed());
        let resume = Resume {
            line: self.next,
            unconfirmed: self.in_flight.values().map(|call| call.lines).sum(),
            recognized_for: self
                .enqueue
                .identity
                .recognizes_lines()
                .then(|| kept.unwrap_or(TOMBSTONE).saturating_sub(age)),
        };
        print_note(&resume.hint());
        print_error(&format!("{}; {}", self.counts.summary(), resume.state()));
    }
}

// === impl Counts ===

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.enqueued += other.enqueued;
        self.unchanged += other.unchanged;
        self.rejected += other.rejected;
    }

    fn stored(&mut self, outcome: EnqueueOutcome) {
        self.enqueued += 1;
        self.unchanged += u64::from(outcome == EnqueueOutcome::Unchanged);
    }

    fn summary(&self) -> String {
        let mut text = format!("{} enqueued", self.enqueued);
        if self.unchanged > 0 {
            text += &format!(", {} of them were there already", self.unchanged);
        }
        if self.rejected > 0 {
            text += &format!(", {} refused", self.rejected);
        }
        text
    }
}

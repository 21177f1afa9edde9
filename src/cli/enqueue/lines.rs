//! `--lines`: a job for each line, in batches, several of them under way.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesOrdered;
use tonic::Code;

use super::Enqueue;
use super::connect::{self, Connection};
use super::exit::{self, Failure, complain, note};
use super::input::{Batch, Line, Source, digest, payload};
use super::ledger::Ledger;
use super::output::{JsonList, Out};
use super::progress::Progress;
use crate::client::{Enqueued, Error, Producer};
use crate::pb::{EnqueueOutcome, EnqueueResult, GetServerInfoRequest, ItemError, JobSpec, Payload};

/// Calls under way: the server groups what comes together, and writes one while another is sent.
const CALLS: usize = 8;

/// Enqueues each line.
pub(super) async fn run(enqueue: &Enqueue, file: &Path) -> Result<(), Failure> {
    let template = enqueue.template()?;
    let source = Source::open(file)?;
    let connection = enqueue.connect.connection()?;
    tokio::select! {
        result = reach(&connection) => result?,
        () = connect::interrupted() => return Err(Failure::told(exit::INTERRUPTED)),
    }
    let producer = connection.client().producer();
    let producer = producer
        .on_conflict(enqueue.identity.policy())
        .durability(enqueue.identity.durability())
        .repeat_for(connection.timeout());
    let import = Import {
        enqueue,
        connection,
        producer,
        template,
        name: source.name.clone(),
        ledger: Ledger::default(),
        progress: Progress::new(source.size, !enqueue.quiet),
        list: (enqueue.output.is_json() && !enqueue.quiet).then(JsonList::new),
        out: Out::new(),
        stop: None,
    };
    import.run(source).await
}

/// Fails at once where no server answers, instead of repeating the first batch for long.
async fn reach(connection: &Connection) -> Result<(), Failure> {
    let request = connection.request(GetServerInfoRequest {});
    let mut admin = connection.client().admin();
    match connection.ask(admin.get_server_info(request)).await {
        Err(error) if error.is_unavailable() => Err(connection.failure("cannot enqueue", &error)),
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

/// One run of `--lines`.
struct Import<'a> {
    enqueue: &'a Enqueue,
    connection: Connection,
    producer: Producer,
    template: JobSpec,
    /// Of the input.
    name: String,
    ledger: Ledger,
    progress: Progress,
    list: Option<JsonList>,
    out: Out,
    /// Why nothing more is sent.
    stop: Option<Failure>,
}

// === impl Import ===

impl Import<'_> {
    async fn run(mut self, source: Source) -> Result<(), Failure> {
        let mut batches = source.batches();
        let mut calls: FuturesOrdered<BoxFuture<'static, Answered>> = FuturesOrdered::new();
        let mut ended = false;
        let interrupted = connect::interrupted();
        tokio::pin!(interrupted);
        while !(ended && calls.is_empty()) {
            tokio::select! {
                () = &mut interrupted => {
                    self.stop = Some(Failure::new(exit::INTERRUPTED, "interrupted"));
                    break;
                }
                Some(answered) = calls.next() => self.take(answered)?,
                batch = batches.recv(), if !ended && calls.len() < CALLS => match batch {
                    Some(Ok(batch)) => calls.push_back(self.send(batch)),
                    Some(Err(failure)) => self.stop = self.stop.or(Some(failure)),
                    None => ended = true,
                },
            }
            // What is under way is waited for all the same: it may be in.
            ended |= self.stop.is_some();
        }
        self.ledger.give_up();
        self.end()
    }

    /// Begins a call.
    fn send(&mut self, batch: Batch) -> BoxFuture<'static, Answered> {
        let Batch { lines, offset } = batch;
        if let Some(last) = lines.last() {
            self.ledger.sent(last.number);
        }
        let numbers: Vec<u64> = lines.iter().map(|line| line.number).collect();
        let mut jobs = Vec::with_capacity(lines.len());
        let short: Vec<bool> = lines.iter().map(|line| line.bytes.is_some()).collect();
        jobs.extend(lines.into_iter().filter_map(|line| self.job(line)));
        let (producer, longest) = (self.producer.clone(), self.connection.timeout() * 2);
        Box::pin(async move {
            let mut answers = answers(&producer, jobs, longest).await.into_iter();
            let answer = |is_short| match is_short {
                true => answers.next().unwrap_or_else(|| Err(no_answer())),
                false => Err(too_long()),
            };
            let answers: Vec<_> = short.into_iter().map(answer).collect();
            Answered { lines: numbers.into_iter().zip(answers).collect(), offset }
        })
    }

    /// The job of a line that is not too long.
    fn job(&self, line: Line) -> Option<JobSpec> {
        let payload: Payload = payload(line.bytes?);
        let identity = &self.enqueue.identity;
        let id = match &identity.request_id {
            _ if identity.id_from_payload => digest(payload.bytes()),
            // As the server would make it, but with the line instead of the place in a call.
            Some(request_id) => format!("r:{request_id}:{}", line.number),
            None => String::new(),
        };
        let payload = Some(self.enqueue.spec.typed(payload));
        Some(JobSpec { id, payload, ..self.template.clone() })
    }

    fn take(&mut self, answered: Answered) -> Result<(), Failure> {
        for (line, answer) in answered.lines {
            if self.list.is_some() || !self.enqueue.quiet {
                self.print(&answer)?;
            }
            match answer {
                Ok(job) => {
                    self.ledger.enqueued(line, job.outcome == EnqueueOutcome::Unchanged);
                }
                Err(error) => self.fail(line, &error),
            }
        }
        self.progress.set(answered.offset, self.ledger.count());
        // So that a reader sees the ids while the next ones are made.
        self.out.flush()
    }

    fn print(&mut self, answer: &Result<Enqueued, Error>) -> Result<(), Failure> {
        match (&mut self.list, answer) {
            (Some(list), answer) => list.row(&mut self.out, &row(answer)),
            (None, Ok(job)) => self.out.line(&job.id),
            (None, Err(_)) => Ok(()),
        }
    }

    fn fail(&mut self, line: u64, error: &Error) {
        let what = format!("line {line} of {}", self.name);
        if is_of_the_line(error) {
            self.ledger.refused(line);
            let problem = format!("{what}: {}", error.message());
            self.progress.suspend(|| complain(&problem));
            return;
        }
        self.ledger.failed(line, error.outcome_unknown());
        self.stop.get_or_insert_with(|| {
            let what = format!("stopped at {what}");
            self.connection.failure(&what, error)
        });
    }

    fn end(mut self) -> Result<(), Failure> {
        if let Some(list) = self.list.take() {
            list.end(&mut self.out)?;
        }
        self.out.flush()?;
        drop(self.progress);
        let Some(failure) = self.stop else {
            if !self.enqueue.quiet {
                note(&self.ledger.to_string());
            }
            let refused = self.ledger.any_refused();
            return if refused { Err(Failure::told(exit::FAILED)) } else { Ok(()) };
        };
        if !self.ledger.is_begun() {
            return Err(failure);
        }
        failure.tell();
        complain(&self.ledger.state());
        let identity = &self.enqueue.identity;
        let hint = if identity.id_from_payload || identity.request_id.is_some() {
            "run the same command again: it leaves the lines that are in as they are".to_owned()
        } else {
            format!(
                "go on from line {}, as with tail -n +{} | ringq enqueue …",
                self.ledger.resume(),
                self.ledger.resume()
            )
        };
        Err(Failure::told(failure.code()).hint(hint))
    }
}

/// Sends jobs in one call, and waits no longer than that.
async fn answers(
    producer: &Producer,
    jobs: Vec<JobSpec>,
    longest: Duration,
) -> Vec<Result<Enqueued, Error>> {
    let count = jobs.len();
    if count == 0 {
        return Vec::new();
    }
    let answers = tokio::time::timeout(longest, producer.enqueue_batch(jobs)).await;
    answers.unwrap_or_else(|_| vec![Err(no_answer()); count])
}

fn no_answer() -> Error {
    tonic::Status::deadline_exceeded("no answer").into()
}

fn too_long() -> Error {
    ItemError {
        code: Code::InvalidArgument.into(),
        reason: "TOO_LARGE".to_owned(),
        message: "the line is longer than 4 MiB".to_owned(),
        field: "payload".to_owned(),
    }
    .into()
}

/// Whether only this line is to blame. Everything else holds for the other lines, too: they have the
/// same flags, go to the same topic and meet the same server.
fn is_of_the_line(error: &Error) -> bool {
    match error.code() {
        Code::AlreadyExists => true,
        Code::InvalidArgument => error.field().is_some_and(|field| {
            let field = field.split_once("].").map_or(field, |(_, field)| field);
            field.starts_with("payload") && field != "payload.content_type"
        }),
        _ => false,
    }
}

fn row(answer: &Result<Enqueued, Error>) -> EnqueueResult {
    match answer {
        Ok(job) => EnqueueResult {
            id: job.id.clone(),
            outcome: job.outcome.into(),
            due_time: job.due_time.map(Into::into),
            durability: job.durability.into(),
            shard: job.shard.clone(),
            state: job.state.into(),
            error: None,
        },
        Err(error) => EnqueueResult {
            error: Some(ItemError {
                code: error.code().into(),
                reason: error.reason().to_owned(),
                message: error.message().to_owned(),
                field: error.field().unwrap_or_default().to_owned(),
            }),
            ..Default::default()
        },
    }
}

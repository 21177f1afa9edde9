//! Vocabulary of scenarios.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringq::pb::StreamResponse;
use serde::Deserialize;
use tokio::sync::{Mutex, mpsc};
use tonic::Status;

use super::answers::Answer;
use super::call::{Call, Method};
use super::jobs::{Job, TOPIC};
use super::program::{Program, Stopped};
use super::record::{Check, Failure, Log, Met, Record};
use super::server::{OpenStream, Port, PortMode, Server};
use super::source::Source;

/// Time until a program has made its first call: some need seconds to start, more when several do at once.
const START_MAX: Duration = Duration::from_secs(40);
/// Token that each program gets.
pub(crate) const TOKEN: &str = "gym-token";
/// Name of each worker.
pub(crate) const WORKER_ID: &str = "gym-worker";

/// Scenario that runs: a scripted server, and the program under test.
#[derive(Clone)]
pub(crate) struct Gym(Arc<Inner>);

struct Inner {
    server: Arc<Server>,
    record: Arc<Record>,
    grpc: Port,
    json: Port,
    streams: Mutex<mpsc::Receiver<OpenStream>>,
    program: Mutex<Option<Program>>,
    /// Set once the program may end.
    is_stopped: AtomicBool,
    folder: tempfile::TempDir,
    commands: Commands,
}

/// Command lines of a language, and the protocol that its programs use.
#[derive(Clone, Debug)]
pub(crate) struct Commands {
    pub(crate) worker: String,
    pub(crate) producer: String,
    /// True if its worker uses Pull over JSON.
    pub(crate) json: bool,
}

/// Line of the ledger.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct LedgerLine {
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) topic: String,
    #[serde(default)]
    pub(crate) fence: i64,
    #[serde(default)]
    pub(crate) attempt: i32,
    #[serde(default)]
    pub(crate) steps: u32,
    #[serde(default)]
    pub(crate) from: u32,
    #[serde(default)]
    pub(crate) by: String,
}

/// Converts seconds.
pub(crate) fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

// === impl Gym ===

impl Gym {
    pub(crate) async fn start(commands: Commands) -> Check<Gym> {
        let record = Arc::new(Record::new());
        let (server, streams) = Server::new(Arc::clone(&record));
        let failed = |error: std::io::Error| Failure(format!("the gym itself: {error}"));
        let (grpc, json) = server.listen().await.map_err(failed)?;
        let folder = tempfile::tempdir().map_err(failed)?;
        let (streams, program) = (Mutex::new(streams), Mutex::default());
        let is_stopped = AtomicBool::new(false);
        let inner =
            Inner { server, record, grpc, json, streams, program, is_stopped, folder, commands };
        Ok(Gym(Arc::new(inner)))
    }

    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.0.record
    }

    pub(super) fn server(&self) -> &Arc<Server> {
        &self.0.server
    }

    /// Starts the worker with these settings over those of all scenarios.
    pub(crate) async fn start_worker(&self, settings: &[(&str, &str)]) -> Check<()> {
        let defaults = [
            ("RINGQ_TOPICS", TOPIC),
            ("RINGQ_WORKER_ID", WORKER_ID),
            ("RINGQ_CREDIT", "16"),
            ("RINGQ_CONCURRENCY", "4"),
            ("RINGQ_LEASE", "2"),
            ("RINGQ_CALL_TIMEOUT", "5"),
            ("RINGQ_GRACE", "10"),
        ];
        let settings = defaults.iter().chain(settings);
        let command = self.0.commands.worker.clone();
        self.run(&command, &[], settings.copied()).await
    }

    /// Runs the producer to its end, and returns its exit code.
    pub(crate) async fn produce(&self, count: usize, settings: &[(&str, &str)]) -> Check<i32> {
        // It ends by itself.
        self.0.is_stopped.store(true, Ordering::Relaxed);
        self.record().write(|log, _| log.exit = None);
        let command = self.0.commands.producer.clone();
        let defaults = [("RINGQ_TOPICS", TOPIC), ("RINGQ_CALL_TIMEOUT", "5")];
        let settings = defaults.iter().chain(settings);
        self.run(&command, &[count.to_string()], settings.copied()).await?;
        let program = self.0.program.lock().await;
        let exit = program.as_ref().unwrap().ended(START_MAX).await?;
        Ok(exit.code().unwrap_or(-1))
    }

    async fn run<'a>(
        &self,
        command: &str,
        arguments: &[String],
        settings: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Check<()> {
        let mut variables = BTreeMap::from([
            ("RINGQ_SERVER".to_owned(), self.0.grpc.address().to_string()),
            ("RINGQ_HTTP".to_owned(), format!("http://{}", self.0.json.address())),
            ("RINGQ_TOKEN".to_owned(), TOKEN.to_owned()),
            ("RINGQ_LEDGER".to_owned(), self.ledger_path().display().to_string()),
        ]);
        variables.extend(settings.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let variables: Vec<_> = variables.into_iter().collect();
        let folder = self.0.folder.path();
        let program = Program::start(command, arguments, &variables, folder, &self.0.record)?;
        *self.0.program.lock().await = Some(program);
        Ok(())
    }

    fn ledger_path(&self) -> std::path::PathBuf {
        self.0.folder.path().join("ledger")
    }

    /// Returns the ledger so far.
    pub(crate) fn ledger(&self) -> Vec<LedgerLine> {
        let text = std::fs::read_to_string(self.ledger_path()).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns the number of lines of a job in the ledger.
    pub(crate) fn done(&self, id: &str) -> usize {
        self.ledger().iter().filter(|line| line.id == id).count()
    }

    /// Returns the source of jobs that the worker opens next: a stream, or its Pull calls.
    pub(crate) async fn source(&self) -> Check<Source> {
        let sentence = "the worker asks for jobs";
        if !self.0.commands.json {
            return self.stream_within(START_MAX, sentence).await;
        }
        let pull = |log: &Log| log.calls(Method::Pull).first().map(|call| (*call).clone());
        let call = self.record().until(START_MAX, sentence, pull).await?;
        Ok(Source::pulls(self.clone(), call))
    }

    /// Returns the next stream.
    pub(crate) async fn stream(&self, within: f64) -> Check<Source> {
        self.stream_within(secs(within), "the worker opens the next stream").await
    }

    async fn stream_within(&self, within: Duration, sentence: &str) -> Check<Source> {
        let mut streams = self.0.streams.lock().await;
        let exited = self.record().until(within + secs(1.0), "", |log: &Log| log.exit.clone());
        let opened = tokio::select! {
            opened = tokio::time::timeout(within, streams.recv()) => opened.ok().flatten(),
            Ok(exit) = exited => return Err(Failure::ended(sentence, &exit)),
        };
        let late = || Failure::late(sentence, within);
        Ok(Source::stream(self.clone(), opened.ok_or_else(late)?))
    }

    /// Decides about the calls of a method from now on.
    pub(crate) fn answer(
        &self,
        method: Method,
        rule: impl FnMut(&Call) -> Answer + Send + 'static,
    ) {
        self.server().set_rule(method, Box::new(rule));
    }

    /// Decides which Stream calls, counted from 1, are refused.
    pub(crate) fn refuse(&self, rule: impl FnMut(usize) -> Option<Status> + Send + 'static) {
        self.server().set_refusal(Box::new(rule));
    }

    /// Waits until `look` finds what the sentence states.
    pub(crate) async fn expect<M: Met>(
        &self,
        within: f64,
        sentence: &str,
        look: impl FnMut(&Log) -> M,
    ) -> Check<M::Value> {
        self.record().until(secs(within), sentence, look).await
    }

    /// Waits until these jobs are acked.
    pub(crate) async fn expect_acked(&self, within: f64, ids: &[&str]) -> Check<()> {
        let sentence = format!("{} acked", ids.join(", "));
        self.expect(within, &sentence, |log| log.all_acked(ids.iter().copied())).await
    }

    /// Fails if `look` is false between now and a time of the scenario.
    pub(crate) async fn holds(
        &self,
        until: Duration,
        sentence: &str,
        look: impl FnMut(&Log) -> bool,
    ) -> Check<()> {
        self.record().holds(until, sentence, look).await
    }

    /// Fails if `met` is false.
    pub(crate) fn check(&self, sentence: impl Into<String>, met: bool) -> Check<()> {
        if met { Ok(()) } else { Err(Failure(sentence.into())) }
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&Log) -> T) -> T {
        self.record().read(look)
    }

    pub(crate) fn now(&self) -> Duration {
        self.record().now()
    }

    /// Ends the leases of a job at the server.
    pub(crate) fn lose(&self, id: &str) {
        self.record().note(format!("{id} is taken from the worker"));
        self.record().write(|log, _| log.lose(id));
    }

    pub(crate) async fn close_port(&self) {
        self.record().note("the port is closed");
        self.0.grpc.close().await;
    }

    pub(crate) async fn open_port(&self, mode: PortMode) -> Check<()> {
        self.record().note(format!("the port is open, mode {mode:?}"));
        let failed = |error| Failure(format!("the gym itself cannot open its port: {error}"));
        self.0.grpc.reopen(mode).await.map_err(failed)
    }

    pub(crate) async fn terminate(&self) {
        self.0.is_stopped.store(true, Ordering::Relaxed);
        self.record().note("SIGTERM");
        if let Some(program) = &*self.0.program.lock().await {
            program.terminate();
        }
    }

    /// Kills the program, if it still runs.
    pub(crate) async fn kill(&self) {
        drop(self.0.program.lock().await.take());
    }

    /// Waits for the end of the worker after SIGTERM: exit code 0, and its counts.
    pub(crate) async fn stopped(&self, within: f64) -> Check<Stopped> {
        let program = self.0.program.lock().await;
        let Some(program) = &*program else { return Err(Failure("no worker".to_owned())) };
        let exit = program.ended(secs(within)).await?;
        self.check(
            format!("the worker exits with 0 after SIGTERM, not with {exit}"),
            exit.success(),
        )?;
        let counts = self.read(|log| Stopped::from_lines(&log.stderr));
        counts.ok_or_else(|| Failure("the last line of stderr is `stopped: acked=N …`".to_owned()))
    }

    /// Ends the worker and checks what holds in each scenario.
    pub(crate) async fn finish(&self) -> Check<()> {
        let has_program = self.0.program.lock().await.is_some();
        if has_program && !self.0.is_stopped.load(Ordering::Relaxed) {
            let runs = self.read(|log| log.exit.is_none());
            self.check("the worker does not end by itself", runs)?;
            self.terminate().await;
            self.stopped(8.0).await?;
        }
        let violations = self.read(|log| log.violations.clone());
        self.check(violations.join("; "), violations.is_empty())?;
        let held = self.read(Log::held);
        let sentence = format!("at its end the worker has settled all it held, but not {held:?}");
        self.check(sentence, held.is_empty())?;
        let expected = format!("Bearer {TOKEN}");
        let has_token = |call: &Call| call.authorization.as_deref() == Some(&expected);
        let without = self.read(|log| log.calls.iter().find(|call| !has_token(call)).cloned());
        match without {
            None => Ok(()),
            Some(call) => Err(Failure(format!("each call has the token, but not {}", call.text()))),
        }
    }

    /// Hands jobs to Pull calls.
    pub(super) fn offer(&self, jobs: Vec<Job>) {
        self.server().offer(jobs);
    }
}

/// Encodes a message of a stream, with unknown fields after those of the contract.
pub(super) fn encoded(message: &StreamResponse, unknown: &[u8]) -> bytes::Bytes {
    use prost::Message as _;
    let mut bytes = message.encode_to_vec();
    bytes.extend_from_slice(unknown);
    bytes.into()
}

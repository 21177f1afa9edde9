//! A whole server, counted from the request's bytes to the answer's: this program runs it on one thread, so that the
//! order of events is the same in every run. It is driven from outside over gRPC, which does not count.

use std::io::{BufRead as _, BufReader, Write as _, stdin, stdout};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use anyhow::{Context as _, Result, ensure};
use ringq::app::App;
use ringq::auth::token::TokenHash;
use ringq::config::Config;
use ringq::pb::queue_service_client::QueueServiceClient;
use ringq::pb::{
    AckItem, AckRequest, BatchEnqueueRequest, Delivery, EnqueueRequest, JobSpec, PullRequest,
    StreamRequest, StreamResponse,
};
use ringq::telemetry::{LogFormat, OtlpConfig, Signals, Telemetry};
use tokio::runtime;
use tokio::sync::oneshot;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use crate::callgrind::{CallgrindCounts, OWN_MARK, callgrind_mark};
use crate::receiver::SpanReceiver;
use crate::{RegressFigure, own_program};

/// Argument by which this program runs the server; the url of its shard follows, and [`TRACED`] or nothing.
pub(crate) const COMMAND: &str = "serve";
/// Argument by which the server exports traces.
pub(crate) const TRACED: &str = "--traced";
/// Argument by which the server has identities; the path of their file follows.
pub(crate) const TOKEN: &str = "--token";
/// Token of the only identity.
const SECRET: &str = "rq_k7Qp2mVb9XcRt4Ws8ZyNf1Ha6JdLe3Gu5Ti0OoPqAsD";
/// Share of the calls that a traced server records.
const SAMPLED: &str = "0.01";
/// Number of jobs that run one after the other.
const SINGLE: usize = 100;
/// Number of calls with many jobs each, and of their jobs.
const BATCHES: (usize, usize) = (10, 100);
const TOPIC: &str = "orders";

/// A server under callgrind. Dropping it ends it.
struct CountedServer {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    counts: CallgrindCounts,
}

/// A producer that is a worker, too.
struct RegressClient {
    queue: QueueServiceClient<InterceptedService<Channel, TokenHeader>>,
}

/// Header that each call gets, if there is a token.
#[derive(Clone)]
struct TokenHeader(Option<MetadataValue<Ascii>>);

/// Returns the cost of the life of a job in a server with this shard: instructions per job.
pub(crate) async fn count(name: &str, url: &str) -> Result<Vec<RegressFigure>> {
    count_with(name, url, None, None).await
}

/// Returns the cost as [`count`] does, in a server with an identity whose token each call brings.
pub(crate) async fn count_with_token(name: &str, url: &str) -> Result<Vec<RegressFigure>> {
    let file = tempfile::NamedTempFile::with_suffix(".toml")?;
    let hash = TokenHash::of(SECRET);
    std::fs::write(
        file.path(),
        format!(
            "[[identity]]\nname = 'app'\ntokens = ['{hash}']\nproducer = ['a.*', 'ord*']\n\
             worker = ['a.*', 'ord*']\n"
        ),
    )?;
    count_with(name, url, None, file.path().to_str()).await
}

/// Returns the cost as [`count`] does, in a server that records one call of a hundred and exports its spans.
pub(crate) async fn count_traced(name: &str, url: &str) -> Result<Vec<RegressFigure>> {
    let receiver = SpanReceiver::start().await?;
    count_with(name, url, Some(&receiver), None).await
}

async fn count_with(
    name: &str,
    url: &str,
    receiver: Option<&SpanReceiver>,
    identities: Option<&str>,
) -> Result<Vec<RegressFigure>> {
    let receiver_url = receiver.map(|receiver| &*receiver.url);
    let mut server = CountedServer::start(url, receiver_url, identities)?;
    let address = server.line()?;
    let mut client = RegressClient::connect(&address, identities.is_some()).await?;
    // Allocations of the first use do not count.
    client.run_jobs_singly(10).await?;
    if let Some(receiver) = receiver {
        // Nor does the connection to the receiver.
        client.call_with_trace().await?;
        receiver.first_span().await?;
    }
    server.part()?;
    client.run_jobs_singly(SINGLE).await?;
    let alone = server.part()? / SINGLE as f64;
    let mut stream = client.stream().await?;
    client.run_jobs_in_batches(&mut stream, (2, BATCHES.1)).await?;
    server.part()?;
    client.run_jobs_in_batches(&mut stream, BATCHES).await?;
    let together = server.part()? / (BATCHES.0 * BATCHES.1) as f64;
    Ok(vec![
        RegressFigure::new(format!("server.{name}.alone"), alone),
        RegressFigure::new(format!("server.{name}.together"), together),
    ])
}

/// Serves until it is killed, and marks at each line of the input.
pub(crate) fn serve(url: &str, traced: bool, identities: Option<&str>) -> Result<()> {
    let identities = identities.map(|path| format!("identities = '{path}'\naudit_log = 'none'\n"));
    let config = Config::from_toml(&format!(
        "listen = '127.0.0.1:0'\nhttp_listen = '127.0.0.1:0'\n{}[[shard]]\nname = 's0'\nurl = '{url}'\n",
        identities.unwrap_or_default()
    ))?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let otlp = OtlpConfig {
            signals: Signals { traces: traced, ..Signals::default() },
            ..OtlpConfig::default()
        };
        let telemetry = Telemetry::start(LogFormat::Text, "off", &otlp, "bench")?;
        let app = App::build(config, telemetry).await?;
        writeln!(stdout(), "http://{}", app.grpc_address())?;
        let (stop, stopped) = oneshot::channel();
        std::thread::spawn(move || {
            let marked = mark_on_stdin();
            let _ = stop.send(());
            marked
        });
        app.run(async { drop(stopped.await) }).await?;
        Ok(())
    })
}

/// Marks at each line of the input, and prints a line.
fn mark_on_stdin() -> Result<()> {
    for line in stdin().lines() {
        line?;
        callgrind_mark();
        writeln!(stdout(), "marked")?;
    }
    Ok(())
}

// === impl CountedServer ===

impl CountedServer {
    fn start(url: &str, receiver: Option<&str>, identities: Option<&str>) -> Result<CountedServer> {
        let counts = CallgrindCounts::new()?;
        let mut command = counts.command(own_program()?, OWN_MARK);
        command.args([COMMAND, url]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(receiver) = receiver {
            command.arg(TRACED).envs([
                ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", SAMPLED),
            ]);
        }
        if let Some(identities) = identities {
            command.args([TOKEN, identities]);
        }
        let mut child = command.spawn()?;
        let stdin = child.stdin.take().context("no input")?;
        let stdout = BufReader::new(child.stdout.take().context("no output")?);
        Ok(CountedServer { child, stdin, stdout, counts })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the server ended");
        Ok(line.trim().to_owned())
    }

    /// Ends a part and returns its instructions.
    fn part(&mut self) -> Result<f64> {
        writeln!(self.stdin, "mark")?;
        self.line()?;
        let parts = self.counts.parts()?;
        let [part] = parts[..] else { anyhow::bail!("{} parts at a mark", parts.len()) };
        Ok(part as f64)
    }
}

impl Drop for CountedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// === impl TokenHeader ===

impl Interceptor for TokenHeader {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(header) = &self.0 {
            request.metadata_mut().insert("authorization", header.clone());
        }
        Ok(request)
    }
}

// === impl RegressClient ===

impl RegressClient {
    async fn connect(address: &str, with_token: bool) -> Result<RegressClient> {
        let channel = Endpoint::from_shared(address.to_owned())?.connect().await?;
        let header = with_token.then(|| format!("Bearer {SECRET}").parse()).transpose()?;
        Ok(RegressClient {
            queue: QueueServiceClient::with_interceptor(channel, TokenHeader(header)),
        })
    }

    async fn stream(&mut self) -> Result<Streaming<StreamResponse>> {
        let max_in_flight = i32::try_from(BATCHES.1)?;
        let topics = vec![TOPIC.to_owned()];
        let lease_duration = Some(prost_types::Duration { seconds: 30, nanos: 0 });
        let take = StreamRequest { topics, max_in_flight, lease_duration, ..Default::default() };
        Ok(self.queue.stream(take).await?.into_inner())
    }

    /// Makes a call that is recorded, because its caller asks for that.
    async fn call_with_trace(&mut self) -> Result<()> {
        let mut call = Request::new(PullRequest {
            topics: vec![TOPIC.to_owned()],
            wait: Some(prost_types::Duration::default()),
            ..Default::default()
        });
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        call.metadata_mut().insert("traceparent", trace.parse()?);
        self.queue.pull(call).await?;
        Ok(())
    }

    /// Runs jobs one after the other, each in calls of its own. They are pulled: on a stream the claim that finds
    /// nothing more sometimes finds the next job.
    async fn run_jobs_singly(&mut self, jobs: usize) -> Result<()> {
        for _ in 0..jobs {
            self.queue.enqueue(EnqueueRequest { job: Some(job()), ..Default::default() }).await?;
            let topics = vec![TOPIC.to_owned()];
            let wait = Some(prost_types::Duration::default());
            let pull = PullRequest { topics, max_jobs: 1, wait, ..Default::default() };
            let pulled = self.queue.pull(pull).await?.into_inner().deliveries;
            ensure!(pulled.len() == 1, "{} jobs were pulled", pulled.len());
            self.ack(pulled).await?;
        }
        Ok(())
    }

    /// Makes this number of calls with this number of jobs each, which come over a stream.
    async fn run_jobs_in_batches(
        &mut self,
        stream: &mut Streaming<StreamResponse>,
        (calls, jobs): (usize, usize),
    ) -> Result<()> {
        for _ in 0..calls {
            let batch = BatchEnqueueRequest { jobs: vec![job(); jobs], ..Default::default() };
            let answer = self.queue.batch_enqueue(batch).await?.into_inner();
            ensure!(answer.failed_count == 0, "a job was refused");
            let mut delivered = Vec::with_capacity(jobs);
            while delivered.len() < jobs {
                let message = stream.message().await?.context("the stream ended")?;
                delivered.extend(message.deliveries);
            }
            self.ack(delivered).await?;
        }
        Ok(())
    }

    async fn ack(&mut self, delivered: Vec<Delivery>) -> Result<()> {
        let item = |delivery: Delivery| AckItem { receipt: delivery.receipt, ..Default::default() };
        let items = delivered.into_iter().map(item).collect();
        let answer = self.queue.ack(AckRequest { items }).await?.into_inner();
        ensure!(answer.failures.is_empty(), "an ack was refused: {:?}", answer.failures);
        Ok(())
    }
}

fn job() -> JobSpec {
    JobSpec::new(TOPIC).with_text("x".repeat(100))
}

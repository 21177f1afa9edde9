//! A whole server, counted from the request's bytes to the answer's: this program runs it on one thread, so that the
//! order of events is the same in every run. It is driven from outside over gRPC, which does not count.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _, stdin, stdout};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

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
use tempfile::TempDir;
use tokio::runtime;
use tokio::sync::oneshot;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, Streaming};

use crate::callgrind::{CallgrindCounts, OWN_MARK, callgrind_mark};
use crate::receiver::SpanReceiver;
use crate::{RegressFigure, own_program};

/// Argument by which this program runs the server; the url of its shard, a [`Variant`] and the
/// directory of its files follow.
pub(crate) const COMMAND: &str = "serve";
/// Token of the only identity.
const SECRET: &str = "rq_k7Qp2mVb9XcRt4Ws8ZyNf1Ha6JdLe3Gu5Ti0OoPqAsD";
/// Files of the variants, in a directory of their own.
const IDENTITIES: &str = "identities.toml";
const CERTIFICATE: &str = "certificate.pem";
const PRIVATE_KEY: &str = "key.pem";
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

/// Work of a server beside its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Nothing.
    Plain,
    /// One call of a hundred is recorded, and its spans are exported.
    Traced,
    /// Each call brings the token of an identity.
    Token,
    /// Connections use TLS.
    Tls,
}

/// Returns the cost of the life of a job in a server with this shard: instructions per job.
pub(crate) async fn count(name: &str, url: &str, variant: Variant) -> Result<Vec<RegressFigure>> {
    let receiver = match variant {
        Variant::Traced => Some(SpanReceiver::start().await?),
        _ => None,
    };
    let receiver = receiver.as_ref();
    let directory = TempDir::new()?;
    variant.write_files(directory.path())?;
    let mut server =
        CountedServer::start(url, variant, directory.path(), receiver.map(|it| &*it.url))?;
    let address = server.line()?;
    let mut client = RegressClient::connect(&address, variant, directory.path()).await?;
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

/// Serves until it is killed, and marks at each line of the input. `directory` has the files of the variant.
pub(crate) fn serve(url: &str, variant: Variant, directory: &Path) -> Result<()> {
    let config = Config::from_toml(&format!(
        "listen = '127.0.0.1:0'\nhttp_listen = '127.0.0.1:0'\n{}[[shard]]\nname = 's0'\nurl = '{url}'\n",
        variant.settings(directory)
    ))?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let otlp = OtlpConfig {
            signals: Signals { traces: variant == Variant::Traced, ..Signals::default() },
            ..OtlpConfig::default()
        };
        let telemetry = Telemetry::start(LogFormat::Text, "off", &otlp, "bench")?;
        let app = App::build(config, telemetry).await?;
        writeln!(stdout(), "{}", app.grpc_address())?;
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

// === impl Variant ===

impl Variant {
    /// All of them.
    pub(crate) const ALL: [Variant; 4] =
        [Variant::Plain, Variant::Traced, Variant::Token, Variant::Tls];

    /// Returns the name in figures and arguments.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Variant::Plain => "plain",
            Variant::Traced => "traced",
            Variant::Token => "token",
            Variant::Tls => "tls",
        }
    }

    /// Writes the files that its settings name.
    fn write_files(self, directory: &Path) -> Result<()> {
        match self {
            Variant::Plain | Variant::Traced => {}
            Variant::Token => {
                let hash = TokenHash::of(SECRET);
                let roles = "producer = ['a.*', 'ord*']\nworker = ['a.*', 'ord*']\n";
                let text = format!("[[identity]]\nname = 'app'\ntokens = ['{hash}']\n{roles}");
                fs::write(directory.join(IDENTITIES), text)?;
            }
            Variant::Tls => {
                let made = Command::new("openssl")
                    .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
                    .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
                    .args(["-addext", "basicConstraints=critical,CA:FALSE"])
                    .args(["-addext", "subjectAltName=DNS:localhost", "-out", CERTIFICATE])
                    .args(["-keyout", PRIVATE_KEY])
                    .current_dir(directory)
                    .output()?;
                ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            }
        }
        Ok(())
    }

    fn settings(self, directory: &Path) -> String {
        let path = |name| directory.join(name).display().to_string();
        match self {
            Variant::Plain | Variant::Traced => String::new(),
            Variant::Token => {
                format!("identities = '{}'\naudit_log = 'none'\n", path(IDENTITIES))
            }
            Variant::Tls => {
                format!("tls_cert = '{}'\ntls_key = '{}'\n", path(CERTIFICATE), path(PRIVATE_KEY))
            }
        }
    }
}

// === impl CountedServer ===

impl CountedServer {
    fn start(
        url: &str,
        variant: Variant,
        directory: &Path,
        receiver: Option<&str>,
    ) -> Result<CountedServer> {
        let counts = CallgrindCounts::new()?;
        let mut command = counts.command(own_program()?, OWN_MARK);
        command.args([COMMAND, url, variant.name()]).arg(directory);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(receiver) = receiver {
            command.envs([
                ("OTEL_EXPORTER_OTLP_ENDPOINT", receiver),
                ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
                ("OTEL_TRACES_SAMPLER_ARG", SAMPLED),
            ]);
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
    async fn connect(address: &str, variant: Variant, directory: &Path) -> Result<RegressClient> {
        let channel = if variant == Variant::Tls {
            let ca = Certificate::from_pem(fs::read(directory.join(CERTIFICATE))?);
            let tls = ClientTlsConfig::new().ca_certificate(ca).domain_name("localhost");
            Endpoint::from_shared(format!("https://{address}"))?.tls_config(tls)?
        } else {
            Endpoint::from_shared(format!("http://{address}"))?
        };
        let channel = channel.connect().await?;
        let header = (variant == Variant::Token).then(|| format!("Bearer {SECRET}").parse());
        let header = header.transpose()?;
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

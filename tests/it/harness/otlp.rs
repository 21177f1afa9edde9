//! An OTLP receiver for traces, logs and metrics that keeps what arrives.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::logs::v1::logs_service_server::{
    LogsService, LogsServiceServer,
};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsServiceRequest, ExportLogsServiceResponse,
};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, async_trait};

use super::{Certificates, PATIENCE, for_a_while};

/// Receiver of one server. Dropping it closes its port.
pub(crate) struct OtlpReceiver {
    pub(crate) address: SocketAddr,
    received: Received,
    _serving: AbortOnDropHandle<()>,
}

/// Everything that arrived. Cloning shares it.
#[derive(Clone, Default)]
pub(crate) struct Received(Arc<Mutex<Signals>>);

#[derive(Default)]
struct Signals {
    traces: Vec<ExportTraceServiceRequest>,
    logs: Vec<ExportLogsServiceRequest>,
    metrics: Vec<ExportMetricsServiceRequest>,
    /// Metadata `authorization` of the last call.
    authorization: String,
}

// === impl OtlpReceiver ===

impl OtlpReceiver {
    /// Starts one on a free port.
    pub(crate) async fn start() -> OtlpReceiver {
        OtlpReceiver::listen("127.0.0.1:0".parse().unwrap()).await
    }

    /// Starts one at this address.
    pub(crate) async fn listen(address: SocketAddr) -> OtlpReceiver {
        OtlpReceiver::serve(address, Server::builder()).await
    }

    /// Starts one that has a certificate.
    pub(crate) async fn encrypted(files: &Certificates) -> OtlpReceiver {
        let [cert, key] = [&files.cert, &files.key].map(|file| std::fs::read(file).unwrap());
        let tls = ServerTlsConfig::new().identity(Identity::from_pem(cert, key));
        let server = Server::builder().tls_config(tls).unwrap();
        OtlpReceiver::serve("127.0.0.1:0".parse().unwrap(), server).await
    }

    async fn serve(address: SocketAddr, mut server: Server) -> OtlpReceiver {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Received::default();
        let router = server
            .add_service(
                TraceServiceServer::new(received.clone())
                    .accept_compressed(tonic::codec::CompressionEncoding::Gzip),
            )
            .add_service(LogsServiceServer::new(received.clone()))
            .add_service(
                MetricsServiceServer::new(received.clone())
                    .accept_compressed(tonic::codec::CompressionEncoding::Gzip),
            );
        let serving = async move {
            router.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap();
        };
        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
        OtlpReceiver { address, received, _serving: serving }
    }

    /// Returns the URL for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until `enough` spans have arrived, and returns all of them, by start.
    pub(crate) async fn spans(&self, enough: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        self.wait(|received| Some(received.spans()).filter(|spans| enough(spans))).await
    }

    /// Waits until a log record has this text, and returns it.
    pub(crate) async fn log(&self, text: &str) -> LogRecord {
        let has = |record: &LogRecord| shown(record.body.as_ref()) == text;
        self.wait(|received| received.logs().into_iter().find(has)).await
    }

    /// Waits until a metric of this name has arrived for which `found` returns a value.
    pub(crate) async fn metric<T>(&self, name: &str, found: impl Fn(&Metric) -> Option<T>) -> T {
        self.wait(|received| {
            let metrics = received.metrics();
            metrics.iter().rev().filter(|metric| metric.name == name).find_map(&found)
        })
        .await
    }

    /// Returns what has arrived.
    pub(crate) fn received(&self) -> &Received {
        &self.received
    }

    async fn wait<T>(&self, found: impl Fn(&Received) -> Option<T>) -> T {
        let arrived = async {
            loop {
                if let Some(found) = found(&self.received) {
                    return found;
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        let found = for_a_while(PATIENCE, arrived).await;
        found.unwrap_or_else(|| panic!("it does not arrive; what did: {}", self.received.text()))
    }
}

// === impl Received ===

impl Received {
    fn spans(&self) -> Vec<Span> {
        let signals = self.0.lock().unwrap();
        let resources = signals.traces.iter().flat_map(|request| &request.resource_spans);
        let scopes = resources.flat_map(|resource| &resource.scope_spans);
        let mut spans: Vec<_> = scopes.flat_map(|scope| scope.spans.clone()).collect();
        spans.sort_by_key(|span| span.start_time_unix_nano);
        spans
    }

    fn logs(&self) -> Vec<LogRecord> {
        let signals = self.0.lock().unwrap();
        let resources = signals.logs.iter().flat_map(|request| &request.resource_logs);
        let scopes = resources.flat_map(|resource| &resource.scope_logs);
        scopes.flat_map(|scope| scope.log_records.clone()).collect()
    }

    fn metrics(&self) -> Vec<Metric> {
        let signals = self.0.lock().unwrap();
        let resources = signals.metrics.iter().flat_map(|request| &request.resource_metrics);
        let scopes = resources.flat_map(|resource| &resource.scope_metrics);
        scopes.flat_map(|scope| scope.metrics.clone()).collect()
    }

    /// Returns the resources that sent something.
    pub(crate) fn resources(&self) -> Vec<Resource> {
        let signals = self.0.lock().unwrap();
        let traces = signals.traces.iter().flat_map(|request| &request.resource_spans);
        let logs = signals.logs.iter().flat_map(|request| &request.resource_logs);
        let metrics = signals.metrics.iter().flat_map(|request| &request.resource_metrics);
        let resources = traces.map(|sent| sent.resource.clone());
        let resources = resources.chain(logs.map(|sent| sent.resource.clone()));
        resources.chain(metrics.map(|sent| sent.resource.clone())).flatten().collect()
    }

    /// Returns the number of messages.
    pub(crate) fn messages(&self) -> usize {
        let signals = self.0.lock().unwrap();
        signals.traces.len() + signals.logs.len() + signals.metrics.len()
    }

    /// Returns the metadata `authorization` of the last call.
    pub(crate) fn authorization(&self) -> String {
        self.0.lock().unwrap().authorization.clone()
    }

    /// Returns everything as text.
    pub(crate) fn text(&self) -> String {
        let signals = self.0.lock().unwrap();
        format!("{:?}\n{:?}\n{:?}", signals.traces, signals.logs, signals.metrics)
    }

    fn add(&self, metadata: &tonic::metadata::MetadataMap, add: impl FnOnce(&mut Signals)) {
        let mut signals = self.0.lock().unwrap();
        let authorization = metadata.get("authorization").map(|text| text.to_str().unwrap());
        signals.authorization = authorization.unwrap_or_default().to_owned();
        add(&mut signals);
    }
}

#[async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.add(&metadata, |signals| signals.traces.push(request));
        Ok(Response::new(Default::default()))
    }
}

#[async_trait]
impl LogsService for Received {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.add(&metadata, |signals| signals.logs.push(request));
        Ok(Response::new(Default::default()))
    }
}

#[async_trait]
impl MetricsService for Received {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.add(&metadata, |signals| signals.metrics.push(request));
        Ok(Response::new(Default::default()))
    }
}

/// Returns an attribute as text; empty if it is absent.
pub(crate) fn attribute(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    shown(found.and_then(|found| found.value.as_ref()))
}

fn shown(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(on)) => on.to_string(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    }
}

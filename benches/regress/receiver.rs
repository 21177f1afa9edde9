//! Receiver of the spans of the server, in this process, which is not counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::server::{Router, TcpIncoming};
use tonic::{Request, Response, Status, async_trait};

/// Receiver that counts spans. Dropping it ends it.
pub(crate) struct SpanReceiver {
    pub(crate) url: String,
    spans: Arc<AtomicUsize>,
    _serving: AbortOnDropHandle<()>,
}

struct CountingService(Arc<AtomicUsize>);

// === impl SpanReceiver ===

impl SpanReceiver {
    pub(crate) async fn start() -> Result<SpanReceiver> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let spans = Arc::new(AtomicUsize::new(0));
        let service = TraceServiceServer::new(CountingService(Arc::clone(&spans)));
        let router: Router = tonic::transport::Server::builder().add_service(service);
        let serving = async move {
            let _ = router.serve_with_incoming(TcpIncoming::from(listener)).await;
        };
        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
        Ok(SpanReceiver { url, spans, _serving: serving })
    }

    /// Returns the number of spans that have arrived.
    pub(crate) fn spans(&self) -> usize {
        self.spans.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl TraceService for CountingService {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = &request.get_ref().resource_spans;
        let scopes = resources.iter().flat_map(|resource| &resource.scope_spans);
        let spans = scopes.map(|scope| scope.spans.len()).sum();
        self.0.fetch_add(spans, Ordering::Relaxed);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

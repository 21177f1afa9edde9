//! Receiver of the spans of the server, in this process, which is not counted.

use std::time::Duration;

use anyhow::{Context as _, Result};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::server::{Router, TcpIncoming};
use tonic::{Request, Response, Status, async_trait};

/// Longest wait for the first span: the server exports every 5 s, and is slow while it is counted.
const FIRST_MAX: Duration = Duration::from_secs(60);

/// Receiver of spans. Dropping it ends it.
pub(crate) struct SpanReceiver {
    pub(crate) url: String,
    arrived: watch::Receiver<bool>,
    _serving: AbortOnDropHandle<()>,
}

struct SpanService(watch::Sender<bool>);

// === impl SpanReceiver ===

impl SpanReceiver {
    pub(crate) async fn start() -> Result<SpanReceiver> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let (sender, arrived) = watch::channel(false);
        let service = TraceServiceServer::new(SpanService(sender));
        let router: Router = tonic::transport::Server::builder().add_service(service);
        let serving = async move {
            let _ = router.serve_with_incoming(TcpIncoming::from(listener)).await;
        };
        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
        Ok(SpanReceiver { url, arrived, _serving: serving })
    }

    /// Waits until a span has arrived.
    pub(crate) async fn first_span(&self) -> Result<()> {
        let mut arrived = self.arrived.clone();
        timeout(FIRST_MAX, arrived.wait_for(|arrived| *arrived))
            .await
            .context("no span came")??;
        Ok(())
    }
}

#[async_trait]
impl TraceService for SpanService {
    async fn export(
        &self,
        _request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send_replace(true);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

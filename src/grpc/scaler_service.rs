//! `ExternalScaler`: the work of topics, as KEDA asks for it to scale their workers. Names, defaults and errors are in
//! `proto/keda/externalscaler.proto`.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::Extensions;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tonic::{Request, Response, Status};

use crate::auth::{Authenticator, StreamSlot};
use crate::contract::scaler::{self, ScalerSettings};
use crate::dispatch::Dispatcher;
use crate::keda::external_scaler_server::ExternalScaler;
use crate::keda::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, ScaledObjectRef,
};
use crate::rpc::Rpc;
use crate::scheduler::Operator;

use super::access::CallAccess;
use super::status::RpcError;

/// Interval at which a stream reads whether there is work. Pods take seconds to start, so events of single jobs, which
/// a busy server has thousands of, would gain nothing.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Handler of `ExternalScaler`.
pub(super) struct ScalerHandler {
    operator: Operator,
    dispatcher: Dispatcher,
    authenticator: Authenticator,
}

/// Watches for changes of whether there is work.
struct ActivityWatch {
    operator: Operator,
    dispatcher: Dispatcher,
    settings: ScalerSettings,
    checks: Interval,
    /// Last value that was sent.
    sent: Option<bool>,
    _slot: Option<StreamSlot>,
}

// === impl ScalerHandler ===

impl ScalerHandler {
    /// Creates the handler on top of these parts.
    pub(super) fn new(
        operator: Operator,
        dispatcher: Dispatcher,
        authenticator: Authenticator,
    ) -> ScalerHandler {
        ScalerHandler { operator, dispatcher, authenticator }
    }
}

#[tonic::async_trait]
impl ExternalScaler for ScalerHandler {
    type StreamIsActiveStream = BoxStream<'static, Result<IsActiveResponse, Status>>;

    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        let settings = settings(request.extensions(), Rpc::IsActive, Some(request.get_ref()))?;
        let result = jobs(&self.operator, &settings).await? > 0;
        Ok(Response::new(IsActiveResponse { result }))
    }

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        let settings =
            settings(request.extensions(), Rpc::StreamIsActive, Some(request.get_ref()))?;
        let access = CallAccess::of(request.extensions(), Rpc::StreamIsActive)?;
        let slot = access.open_stream()?;
        let (authenticator, caller) = (self.authenticator.clone(), access.caller().clone());
        let ended = Box::pin(async move { authenticator.ended(&caller).await });
        let mut checks = interval(CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (operator, dispatcher) = (self.operator.clone(), self.dispatcher.clone());
        let watch =
            ActivityWatch { operator, dispatcher, settings, checks, sent: None, _slot: slot };
        let changes = stream::unfold(watch, async |mut watch| {
            let result = watch.next_change().await?;
            Some((Ok(IsActiveResponse { result }), watch))
        });
        Ok(Response::new(changes.take_until(ended).boxed()))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let settings = settings(request.extensions(), Rpc::GetMetricSpec, Some(request.get_ref()))?;
        Ok(Response::new(scaler::to_metric_spec(&settings)))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let scaled = request.get_ref().scaled_object_ref.as_ref();
        let settings = settings(request.extensions(), Rpc::GetMetrics, scaled)?;
        Ok(Response::new(scaler::to_metric_value(jobs(&self.operator, &settings).await?)))
    }
}

// === impl ActivityWatch ===

impl ActivityWatch {
    /// Waits until there is work for the first time, or no more; `None` when the server drains. While no shard answers,
    /// nothing has changed as far as this server knows.
    async fn next_change(&mut self) -> Option<bool> {
        loop {
            self.checks.tick().await;
            if self.dispatcher.is_draining() {
                return None;
            }
            let Ok(jobs) = jobs(&self.operator, &self.settings).await else { continue };
            let is_active = jobs > 0;
            if self.sent.replace(is_active) != Some(is_active) {
                return Some(is_active);
            }
        }
    }
}

/// Reads the settings of a call, and checks that its caller may read all their topics.
fn settings(
    extensions: &Extensions,
    rpc: Rpc,
    scaled: Option<&ScaledObjectRef>,
) -> Result<ScalerSettings, RpcError> {
    let access = CallAccess::of(extensions, rpc)?;
    let settings = scaler::settings(scaled)?;
    settings.topics.iter().try_for_each(|topic| access.touch(topic))?;
    Ok(settings)
}

async fn jobs(operator: &Operator, settings: &ScalerSettings) -> Result<u64, RpcError> {
    let topics = settings.topics.clone();
    operator.workload(topics, settings.due_within).await.map_err(RpcError::of_read)
}

//! Returns jobs of topics and groups that are paused while they wait for their transports.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::scheduler::Settler;

use crate::dispatch::streams::registry::StreamRegistry;

/// Returns such jobs with each change of a policy, until `stop` is cancelled. A claim that a change has overtaken does
/// the same after it has handed out its jobs.
pub(in crate::dispatch) async fn run(
    settler: Settler,
    streams: Arc<StreamRegistry>,
    stop: CancellationToken,
) {
    let mut documents = settler.documents().watch();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            changed = documents.changed() => if changed.is_err() { return },
        }
        let view = Arc::clone(&documents.borrow_and_update());
        streams.return_paused(&view);
    }
}

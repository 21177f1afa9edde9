//! Keeps the policies of topics as their file is, until the task is dropped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{MissedTickBehavior, timeout};

use crate::contract::topic_file::TopicFile;
use crate::documents::{DocumentView, Documents, FilePolicies, FileRefusal};
use crate::metrics::Metrics;

/// Interval in which the file is compared with what is in force. It is read whole: that of a Kubernetes volume changes by a
/// symbolic link.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum time for which the start waits for the file to be in force.
const FIRST_MAX: Duration = Duration::from_secs(3);

/// Reads a file, or the files of a directory.
///
/// # Errors
/// A text for each mistake.
pub(super) fn read(path: &Path) -> Result<FilePolicies, Vec<String>> {
    let TopicFile { revision, topics } = TopicFile::read(path)?;
    Ok(FilePolicies::new(revision, topics.into_values().collect()))
}

/// Applies the file before the server serves, so that its first jobs get their settings, if the shards answer in time.
pub(super) async fn apply_first(file: &FilePolicies, documents: &Documents) {
    // A failure is logged, and repeated, while the server serves.
    if let Ok(Ok(changed)) = timeout(FIRST_MAX, documents.apply_file(file)).await {
        let (revision, topics) = (file.revision(), file.topics());
        tracing::info!(revision, topics, changed, "policies of topics are in force");
    }
}

/// Applies the file whenever it has changed, or was not in force yet. Mistakes are logged once, show in a metric, and change
/// nothing.
pub(super) async fn follow(path: PathBuf, documents: Documents, metrics: Metrics) {
    let mut checks = tokio::time::interval(CHECK_INTERVAL);
    checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut hangups = signal(SignalKind::hangup()).ok();
    let (mut last, mut checked, mut last_problem) = (None, None, None);
    loop {
        tokio::select! {
            _ = checks.tick() => {}
            () = hung_up(&mut hangups) => {}
        }
        let file = read_beside(path.clone()).await;
        let view = documents.view();
        let problem = match &file {
            // Another server may have put another file in force.
            Ok(file)
                if Some(file) == last.as_ref() && is_checked(checked.as_ref(), &view, file) =>
            {
                None
            }
            Ok(file) => match documents.apply_file(file).await {
                Ok(changed) => {
                    let (revision, topics) = (file.revision(), file.topics());
                    tracing::info!(revision, topics, changed, "policies of topics are in force");
                    last = Some(file.clone());
                    None
                }
                Err(refusal) => Some(refusal),
            },
            Err(problems) => Some(FileRefusal::NotYet(problems.join("; "))),
        };
        checked = problem.is_none().then_some(view);
        metrics.set_topics_not_in_force(problem.is_some());
        if problem != last_problem {
            log(&path, problem.as_ref(), file.is_ok());
            last_problem = problem;
        }
    }
}

/// Returns whether the file is in force. As long as nothing has changed since the last check nothing is compared.
fn is_checked(
    checked: Option<&Arc<DocumentView>>,
    view: &Arc<DocumentView>,
    file: &FilePolicies,
) -> bool {
    checked.is_some_and(|checked| Arc::ptr_eq(checked, view)) || file.is_in_force(view)
}

async fn hung_up(hangups: &mut Option<Signal>) {
    match hangups {
        Some(hangups) => _ = hangups.recv().await,
        None => std::future::pending().await,
    }
}

/// Reads the file beside the runtime.
async fn read_beside(path: PathBuf) -> Result<FilePolicies, Vec<String>> {
    let read = tokio::task::spawn_blocking(move || read(&path)).await;
    read.unwrap_or_else(|_| Err(vec!["the files cannot be read".to_owned()]))
}

fn log(path: &Path, problem: Option<&FileRefusal>, is_valid: bool) {
    let path = path.display();
    match problem {
        None => {}
        Some(FileRefusal::NotYet(error)) if is_valid => {
            tracing::warn!(%path, error, "policies of topics are not applied yet; it goes on by itself");
        }
        Some(FileRefusal::NotYet(error)) => {
            tracing::error!(
                %path, error,
                "policies of topics not read: the former ones stay in force until the file is corrected"
            );
        }
        Some(refusal) => {
            tracing::error!(%path, error = %refusal, "policies of topics refused: those in force stay");
        }
    }
}

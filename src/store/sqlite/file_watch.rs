//! Notices that the file of a shard was moved, deleted or replaced while it is in use. SQLite does not: it writes on into
//! the file that it has open, which no later start finds.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::domain::limit;
use crate::store::{ShardProblem, ShardStatus};

/// Checks the file for as long as the result lives, and rejects new jobs while another file or none has its name. Without
/// a runtime it is not checked.
pub(super) fn start(
    path: PathBuf,
    status: watch::Sender<ShardStatus>,
) -> io::Result<Option<AbortOnDropHandle<()>>> {
    let opened = identity(&path)?;
    let Ok(runtime) = Handle::try_current() else { return Ok(None) };
    let check = async move {
        loop {
            tokio::time::sleep(limit::REPLICA_HEARTBEAT).await;
            let now = tokio::fs::metadata(&path).await;
            let is_gone = match now {
                Ok(now) => (now.dev(), now.ino()) != opened,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            };
            let problem = is_gone.then(|| ShardProblem::RejectsEnqueues(advice(&path)));
            status.send_if_modified(|status| {
                let is_new = status.problem != problem;
                status.problem = problem;
                is_new
            });
        }
    };
    Ok(Some(AbortOnDropHandle::new(runtime.spawn(check))))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

fn advice(path: &Path) -> String {
    format!(
        "{} is not the file that this server has open: that one was moved, deleted or replaced; stop the server, put the \
         file and those beside it (-wal, -shm) back, and start it again",
        path.display()
    )
}

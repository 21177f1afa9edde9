//! File that shows that the server serves, and its addresses, to the process that started it.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::Error;

/// Ready file; removed on drop, so that it never describes a server that is gone.
#[derive(Debug)]
pub(super) struct ReadyFile(PathBuf);

// === impl ReadyFile ===

impl ReadyFile {
    /// Writes the addresses to `path`, if there is one.
    pub(super) async fn write(
        path: Option<PathBuf>,
        grpc: SocketAddr,
        http: SocketAddr,
    ) -> Result<Option<ReadyFile>, Error> {
        let Some(path) = path else { return Ok(None) };
        let addresses = serde_json::json!({"grpc": grpc.to_string(), "http": http.to_string()});
        // Written beside and renamed: a reader that waits for the file never sees half of it.
        let mut partial = path.clone().into_os_string();
        partial.push(".partial");
        let write = async {
            tokio::fs::write(&partial, format!("{addresses}\n")).await?;
            // Unlike the files of shards: the process that waits for it may belong to another user.
            tokio::fs::set_permissions(&partial, Permissions::from_mode(0o644)).await?;
            tokio::fs::rename(&partial, &path).await
        };
        match write.await {
            Ok(()) => Ok(Some(ReadyFile(path))),
            Err(error) => Err(Error::ReadyFile { path, error }),
        }
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        // The file may have been removed before.
        let _ = std::fs::remove_file(&self.0);
    }
}

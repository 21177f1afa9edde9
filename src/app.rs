//! Wires the server together; the only file that knows every module.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::config::{Config, ShardUrl, reason};
use crate::http;
use crate::metrics::Metrics;

/// How often histograms sort what they have collected.
const UPKEEP: Duration = Duration::from_secs(5);

/// A server that has its listeners, but does not serve yet.
#[derive(Debug)]
pub struct App {
    config: Config,
    metrics: Metrics,
    /// Held so that the address is reserved and known.
    grpc: Listener,
    http: Listener,
}

/// Why a server cannot start or go on. What an operator can mend says how.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be had.
    #[error(
        "cannot listen on {address}: {}; free it or choose another with --{flag}",
        reason(error)
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The flag that sets it, without dashes.
        flag: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// The directory of a shard cannot be made or written to.
    #[error(
        "cannot write to {}: {}; make the directory writable or choose another with --data-dir or --shard",
        path.display(), reason(error)
    )]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The ready file cannot be written.
    #[error(
        "cannot write the ready file {}: {}; choose another with --ready-file",
        path.display(), reason(error)
    )]
    ReadyFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A listener failed while it was served.
    #[error("cannot go on serving http: {}", reason(.0))]
    Http(io::Error),
}

/// A listener and where it is.
#[derive(Debug)]
struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

// === impl App ===

impl App {
    /// Takes everything that the server needs: its listeners and its directories.
    ///
    /// # Errors
    /// [`Error`], if an address is taken or a directory cannot be written.
    pub async fn build(config: Config) -> Result<App, Error> {
        for shard in &config.shards {
            if let ShardUrl::SqliteFile(file) = &shard.url {
                prepare_directory(file.parent().unwrap_or(Path::new(""))).await?;
            }
        }
        let grpc = Listener::bind(config.listen, "listen").await?;
        let http = Listener::bind(config.http_listen, "http-listen").await?;
        Ok(App { config, metrics: Metrics::new(), grpc, http })
    }

    /// Where gRPC is served.
    #[must_use]
    pub fn grpc_address(&self) -> SocketAddr {
        self.grpc.address
    }

    /// Where probes and metrics are served.
    #[must_use]
    pub fn http_address(&self) -> SocketAddr {
        self.http.address
    }

    /// Serves until `shutdown` ends, then drains.
    ///
    /// # Errors
    /// [`Error`], if a listener or the ready file fails.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), Error> {
        let (ready, is_ready) = watch::channel(false);
        let stop = CancellationToken::new();
        let router = http::router(self.metrics.clone(), is_ready, Arc::new(|| Box::pin(async {})));
        let _upkeep = AbortOnDropHandle::new(tokio::spawn(upkeep(self.metrics.clone())));
        let (grpc, http) = (self.grpc.address, self.http.address);
        let serve = http::serve(self.http.socket, router, stop.clone().cancelled_owned());
        let drain = async {
            ready.send_replace(true);
            let ready_file = ReadyFile::write(self.config.ready_file, grpc, http).await?;
            tracing::info!(%grpc, %http, replica = self.config.replica, "serving");
            shutdown.await;
            ready.send_replace(false);
            tokio::time::sleep(self.config.drain_delay).await;
            stop.cancel();
            drop(ready_file);
            Ok(())
        };
        let served = async { serve.await.map_err(Error::Http) };
        tokio::try_join!(served, drain)?;
        tracing::info!("stopped");
        Ok(())
    }
}

async fn upkeep(metrics: Metrics) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}

/// Makes the directory of a shard and proves that files can be made in it.
async fn prepare_directory(path: &Path) -> Result<(), Error> {
    // A file without a directory is in the current one.
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let probe = path.join(".ringq-write-test");
    let prepare = async {
        tokio::fs::create_dir_all(path).await?;
        tokio::fs::write(&probe, b"").await?;
        tokio::fs::remove_file(&probe).await
    };
    prepare.await.map_err(|error| Error::DataDir { path: path.to_owned(), error })
}

// === impl Listener ===

impl Listener {
    async fn bind(address: SocketAddr, flag: &'static str) -> Result<Listener, Error> {
        let bind = async {
            let socket = TcpListener::bind(address).await?;
            let address = socket.local_addr()?;
            Ok(Listener { socket, address })
        };
        bind.await.map_err(|error| Error::Listen { address, flag, error })
    }
}

/// The ready file; removed with this, so that it never speaks of a server that is gone.
#[derive(Debug)]
struct ReadyFile(PathBuf);

// === impl ReadyFile ===

impl ReadyFile {
    async fn write(
        path: Option<PathBuf>,
        grpc: SocketAddr,
        http: SocketAddr,
    ) -> Result<Option<ReadyFile>, Error> {
        let Some(path) = path else { return Ok(None) };
        let addresses = serde_json::json!({"grpc": grpc.to_string(), "http": http.to_string()});
        // Written beside and renamed: whoever waits for the file never reads half of it.
        let mut partial = path.clone().into_os_string();
        partial.push(".partial");
        let write = async {
            tokio::fs::write(&partial, format!("{addresses}\n")).await?;
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
        // Somebody may have removed it before.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    /// Settings of a server that touches nothing but what `more` says.
    fn config(more: &str) -> Config {
        let text = format!(
            "listen = '127.0.0.1:0'\nhttp_listen = '127.0.0.1:0'\n{more}\n\
             [[shard]]\nname = 's0'\nurl = 'sqlite::memory:'"
        );
        Config::from_toml(&text).unwrap()
    }

    #[tokio::test]
    async fn a_taken_port_is_told_with_the_way_out() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let mut config = config("");
        config.http_listen = address;
        let error = App::build(config).await.unwrap_err().to_string();
        let want = format!(
            "cannot listen on {address}: address already in use; \
             free it or choose another with --http-listen"
        );
        assert_eq!(error, want);
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_made_is_told_with_the_way_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let directory = file.path().join("data");
        let text = format!("data_dir = {directory:?}");
        let error = App::build(Config::from_toml(&text).unwrap()).await.unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot write to {}: ", directory.display())),
            "{error}"
        );
        assert!(error.contains("--data-dir"), "{error}");
    }

    #[tokio::test]
    async fn the_ready_file_lives_as_long_as_the_server_serves() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ready.json");
        let app = App::build(config(&format!("ready_file = {path:?}"))).await.unwrap();
        let want = serde_json::json!({
            "grpc": app.grpc_address().to_string(), "http": app.http_address().to_string(),
        });
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(app.run(async { drop(stopped.await) }));
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), want);
        drop(stop);
        running.await.unwrap().unwrap();
        assert!(!path.exists());
    }
}

//! Wires the server together; the only file that knows every module.

mod drain;
mod gauges;
mod listener;
mod readiness;
mod ready_file;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Clock;
use crate::config::{Config, Shard, ShardUrl, reason};
use crate::dispatch::{self, Dispatcher};
use crate::domain::ShardName;
use crate::metrics::Metrics;
use crate::scheduler::{Replica, Scheduler};
use crate::shards::{Member, Shards};
use crate::store::Store;
use crate::store::redis::{self, RedisStore};
use crate::store::sqlite::{self, Database, SqliteStore};
use crate::timer::Timer;
use crate::{grpc, http};

use listener::Listener;
use ready_file::ReadyFile;

/// How often histograms sort what they have collected.
const UPKEEP: Duration = Duration::from_secs(30);

/// A server that has its listeners and its shards, but does not serve yet.
pub struct App {
    config: Config,
    scheduler: Scheduler,
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
        "cannot write to {}: {}; {} with --data-dir or --shard",
        path.display(),
        reason(error),
        match error.kind() {
            io::ErrorKind::NotADirectory => "choose another directory",
            _ => "make the directory writable or choose another",
        }
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
    /// A shard cannot be opened.
    #[error("cannot open shard {name} at {url}: {error}")]
    Shard {
        /// The shard.
        name: ShardName,
        /// Where it is.
        url: ShardUrl,
        /// Why, and what to do.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A listener failed while it was served.
    #[error("cannot go on serving http: {}", reason(.0))]
    Http(io::Error),
    /// The gRPC server failed.
    #[error("{0}")]
    Grpc(#[from] grpc::Error),
}

// === impl App ===

impl App {
    /// Takes everything that the server needs: its listeners, its directories and its shards.
    ///
    /// # Errors
    /// [`Error`], if an address is taken, a directory cannot be written or a shard not be opened.
    pub async fn build(config: Config) -> Result<App, Error> {
        for shard in &config.shards {
            if let ShardUrl::SqliteFile(file) = &shard.url {
                prepare_directory(file.parent().unwrap_or(Path::new(""))).await?;
            }
        }
        let grpc = Listener::bind(config.listen, "listen").await?;
        let http = Listener::bind(config.http_listen, "http-listen").await?;
        let (clock, metrics) = (Clock::system(), Metrics::new());
        let replica = Replica { name: config.replica.clone(), nonce: rand::random() };
        let members = config.shards.iter().map(|shard| open(shard, &clock, replica.nonce));
        let shards = Shards::new(try_join_all(members).await?, &metrics);
        shards.join(replica.nonce).await;
        let fingerprint = format!("{:016x}", shards.fingerprint());
        tracing::info!(shards = shards.all().len(), fingerprint, "the ring");
        let scheduler = Scheduler::new(shards, clock, metrics, replica);
        Ok(App { config, scheduler, grpc, http })
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
        let App { config, scheduler, grpc: grpc_listener, http: http_listener } = self;
        let metrics = scheduler.metrics().clone();
        let (grpc_address, http_address) = (grpc_listener.address, http_listener.address);
        let (ready, is_ready) = watch::channel(false);
        let (grpc_stop, http_stop) = (CancellationToken::new(), CancellationToken::new());
        let _upkeep = AbortOnDropHandle::new(tokio::spawn(upkeep(metrics.clone())));
        let dispatcher = Dispatcher::spawn(scheduler.clone(), of_streams(&config));
        let timers_stop = CancellationToken::new();
        let timers = Timer::spawn(&scheduler, &timers_stop);
        let health = grpc::Health::new().await;
        let services = grpc::Services {
            scheduler: scheduler.clone(),
            dispatcher: dispatcher.clone(),
            health: health.clone(),
            about: about(&config, &scheduler),
        };
        let all = scheduler.shards().all().len();
        let refresh = gauges::refresh(scheduler.clone(), dispatcher.clone());
        let router = http::router(metrics, is_ready, refresh);
        let serve_http =
            http::serve(http_listener.socket, router, http_stop.clone().cancelled_owned());
        let told = grpc_stop.clone().cancelled_owned();
        let serve_grpc = grpc::serve(grpc_listener.socket, services, of_calls(&config), told);
        let serve_until_told = async {
            let down = scheduler.shards().down();
            if readiness::begin(*down.borrow(), all) {
                ready.send_replace(true);
                health.set_serving(true).await;
            }
            let ready_file =
                ReadyFile::write(config.ready_file, grpc_address, http_address).await?;
            tracing::info!(grpc = %grpc_address, http = %http_address, replica = config.replica, "serving");
            tokio::select! {
                () = shutdown => {}
                () = readiness::follow(down, all, &ready, &health) => {}
            }
            let delay_s = config.drain_delay.as_secs();
            tracing::info!(
                delay_s,
                "draining: not ready any more, calls are answered until the end"
            );
            ready.send_replace(false);
            health.set_serving(false).await;
            tokio::time::sleep(config.drain_delay).await;
            drain::streams(&dispatcher, config.shutdown_grace).await;
            grpc_stop.cancel();
            drop(ready_file);
            Ok::<(), Error>(())
        };
        let grpc_and_drain = async {
            drain::bounded(serve_until_told, serve_grpc).await?;
            drain::the_rest(async {
                dispatcher.close().await;
                timers_stop.cancel();
                timers.stopped().await;
                scheduler.shards().close().await;
            })
            .await;
            http_stop.cancel();
            Ok(())
        };
        let serve_http = async { serve_http.await.map_err(Error::Http) };
        tokio::try_join!(serve_http, grpc_and_drain)?;
        tracing::info!("stopped");
        Ok(())
    }
}

fn of_streams(config: &Config) -> dispatch::Config {
    dispatch::Config {
        streams_max: config.max_streams,
        age_max: config.stream_max_age.unwrap_or(Duration::ZERO),
    }
}

fn of_calls(config: &Config) -> grpc::Config {
    grpc::Config {
        max_concurrent_requests: config.max_concurrent_requests,
        request_timeout: config.request_timeout,
    }
}

/// What the server says of itself.
fn about(config: &Config, scheduler: &Scheduler) -> grpc::About {
    let store = config.shards.first().map_or("", |shard| shard.url.kind());
    grpc::About { store, start_time: scheduler.clock().now() }
}

/// Opens the store of a shard; `owner`: the nonce of this replica.
async fn open(shard: &Shard, clock: &Clock, owner: u32) -> Result<Member, Error> {
    let Shard { name, url, weight, state } = shard;
    let opened = open_store(name.clone(), url, clock.clone(), owner).await;
    let store = opened.map_err(|error| {
        let (name, url) = (name.clone(), url.clone());
        Error::Shard { name, url, error }
    })?;
    tracing::info!(shard = %name, %url, weight, "opened");
    Ok(Member { store, weight: *weight, state: *state })
}

async fn open_store(
    name: ShardName,
    url: &ShardUrl,
    clock: Clock,
    owner: u32,
) -> Result<Arc<dyn Store>, Box<dyn std::error::Error + Send + Sync>> {
    let database = match url {
        ShardUrl::SqliteFile(path) => Database::File(path.clone()),
        ShardUrl::SqliteMemory => Database::Memory,
        ShardUrl::Redis(address) => {
            let address = address.clone();
            let config = redis::Config { name, address, clock, owner };
            return Ok(Arc::new(RedisStore::open(config).await?));
        }
    };
    Ok(Arc::new(SqliteStore::open(sqlite::Config { name, database, clock })?))
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
    prepare.await.map_err(|error| {
        // A file in the place of the directory; "file exists" would not say what is wrong with that.
        let is_file = error.kind() == io::ErrorKind::AlreadyExists;
        let error = if is_file { io::ErrorKind::NotADirectory.into() } else { error };
        Error::DataDir { path: path.to_owned(), error }
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
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

    /// What a server says that cannot start.
    async fn refused(config: Config) -> String {
        match App::build(config).await {
            Ok(_) => panic!("the server starts"),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn a_taken_port_is_told_with_the_way_out() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let mut config = config("");
        config.http_listen = address;
        let error = refused(config).await;
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
        let error = refused(Config::from_toml(&text).unwrap()).await;
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

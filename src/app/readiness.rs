//! Readiness of the server: it accepts work as long as one of its shards answers. A single unreachable shard must not
//! take every replica out of service, and without any shard a replica cannot do anything.

use tokio::sync::watch;

use crate::grpc::GrpcHealth;
use crate::shards::Shards;

/// Readiness of the server, and the reason if it is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// The server has just started.
    Starting,
    /// The server accepts work.
    Ready,
    /// No shard answers.
    NoShard,
    /// The server is shutting down.
    Draining,
}

/// State that probes read; [`Readiness::not_ready_reason`] has its text.
pub(super) type ReadinessSender = watch::Sender<Readiness>;

// === impl Readiness ===

impl Readiness {
    /// Returns the readiness for a number of unreachable shards.
    fn from_counts(down: usize, all: usize) -> Readiness {
        if down < all { Readiness::Ready } else { Readiness::NoShard }
    }

    /// Returns the reason why no work is accepted, if none is.
    pub(super) fn not_ready_reason(self, shards: &Shards) -> Option<String> {
        match self {
            Readiness::Ready => None,
            Readiness::Starting => Some("the server is starting".to_owned()),
            Readiness::Draining => Some("the server is shutting down".to_owned()),
            Readiness::NoShard => {
                let names: Vec<_> =
                    shards.all().iter().map(|shard| shard.name().as_str()).collect();
                // Errors contain addresses, and any client that reaches the port can read this text.
                let names = names.join(", ");
                Some(format!(
                    "no shard answers: {names}; the log and ringq shard list have the errors"
                ))
            }
        }
    }
}

/// Sets the readiness for both kinds of probes.
pub(super) async fn publish(now: Readiness, ready: &ReadinessSender, health: &GrpcHealth) {
    ready.send_replace(now);
    health.set_serving(now == Readiness::Ready).await;
}

/// Sets the readiness at the start.
pub(super) async fn publish_initial(shards: &Shards, ready: &ReadinessSender, health: &GrpcHealth) {
    let (down, all) = (*shards.down_count().borrow(), shards.all().len());
    let now = Readiness::from_counts(down, all);
    if now == Readiness::NoShard {
        log_no_shard(all);
    }
    publish(now, ready, health).await;
}

/// Keeps both kinds of probes up to date after that. Never returns.
pub(super) async fn follow(shards: &Shards, ready: &ReadinessSender, health: &GrpcHealth) {
    let (mut down, all) = (shards.down_count(), shards.all().len());
    let mut was_ready = *ready.borrow() == Readiness::Ready;
    loop {
        let (now, before) =
            (Readiness::from_counts(*down.borrow_and_update(), all), *ready.borrow());
        if now != before {
            match now {
                Readiness::NoShard => log_no_shard(all),
                // The health of a single shard has logged this already.
                _ if all == 1 => tracing::debug!("server is ready: its shard answers"),
                _ if was_ready => tracing::info!("server is ready: a shard answers again"),
                _ => tracing::info!("server is ready: a shard answers"),
            }
            was_ready |= now == Readiness::Ready;
            publish(now, ready, health).await;
        }
        if down.changed().await.is_err() {
            // The shards are closed, and the server ends soon.
            std::future::pending::<()>().await;
        }
    }
}

/// Logs that no shard answers; at debug for a single shard, because its health has logged it already.
fn log_no_shard(shards: usize) {
    if shards > 1 {
        tracing::warn!("server is not ready and accepts no work: no shard answers");
    } else {
        tracing::debug!("server is not ready and accepts no work: its shard does not answer");
    }
}

//! Whether the server takes work: as long as one of its shards answers. A single dead one must not
//! take every replica out of service, and without any there is nothing that a replica could do.

use tokio::sync::watch;

use crate::grpc::GrpcHealth;
use crate::shards::Shards;

/// Whether the server takes work, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// It has just begun.
    Starting,
    /// It does.
    Ready,
    /// No shard answers.
    NoShard,
    /// It is about to end.
    Draining,
}

/// What probes ask; in words, see [`Readiness::not_ready_reason`].
pub(super) type ReadinessSender = watch::Sender<Readiness>;

// === impl Readiness ===

impl Readiness {
    /// By how many of the shards do not answer.
    fn from_counts(down: usize, all: usize) -> Readiness {
        if down < all { Readiness::Ready } else { Readiness::NoShard }
    }

    /// Why no work is taken, if none is.
    pub(super) fn not_ready_reason(self, shards: &Shards) -> Option<String> {
        match self {
            Readiness::Ready => None,
            Readiness::Starting => Some("the server starts".to_owned()),
            Readiness::Draining => Some("the server is about to end".to_owned()),
            Readiness::NoShard => {
                let names: Vec<_> =
                    shards.all().iter().map(|shard| shard.name().as_str()).collect();
                // Errors name addresses, and whoever reaches the port may ask.
                let names = names.join(", ");
                Some(format!(
                    "no shard answers: {names}; the log and ringq shard list have the errors"
                ))
            }
        }
    }
}

/// Tells both kinds of probes.
pub(super) async fn publish(now: Readiness, ready: &ReadinessSender, health: &GrpcHealth) {
    ready.send_replace(now);
    health.set_serving(now == Readiness::Ready).await;
}

/// Whether work is taken from the start on.
pub(super) async fn publish_initial(shards: &Shards, ready: &ReadinessSender, health: &GrpcHealth) {
    let (down, all) = (*shards.down_count().borrow(), shards.all().len());
    let now = Readiness::from_counts(down, all);
    if now == Readiness::NoShard {
        log_no_shard(all);
    }
    publish(now, ready, health).await;
}

/// Keeps both kinds of probes up to date after that. Ends never.
pub(super) async fn follow(shards: &Shards, ready: &ReadinessSender, health: &GrpcHealth) {
    let (mut down, all) = (shards.down_count(), shards.all().len());
    let mut was_ready = *ready.borrow() == Readiness::Ready;
    loop {
        let (now, before) =
            (Readiness::from_counts(*down.borrow_and_update(), all), *ready.borrow());
        if now != before {
            match now {
                Readiness::NoShard => log_no_shard(all),
                // Of a single shard that has been said.
                _ if all == 1 => tracing::debug!("work is taken"),
                _ if was_ready => tracing::info!("a shard answers again, work is taken"),
                _ => tracing::info!("a shard answers, work is taken"),
            }
            was_ready |= now == Readiness::Ready;
            publish(now, ready, health).await;
        }
        if down.changed().await.is_err() {
            // The shards are gone, and the server soon.
            std::future::pending::<()>().await;
        }
    }
}

/// Of a single shard it has been said that it does not answer.
fn log_no_shard(shards: usize) {
    if shards > 1 {
        tracing::warn!("no shard answers, no work is taken");
    } else {
        tracing::debug!("no work is taken");
    }
}

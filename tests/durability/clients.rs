//! All clients of a rig, on threads of their own, and the waiting for what they do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::rig::Rig;
use crate::{producer, worker};

/// Running producers and workers.
pub(crate) struct Clients {
    runtime: Runtime,
    tasks: JoinSet<()>,
}

impl Clients {
    /// Starts producers and workers.
    pub(crate) fn start(rig: &Arc<Rig>) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let mut tasks = JoinSet::new();
        let inside = runtime.enter();
        worker::start(rig, &mut tasks);
        producer::start(rig, &mut tasks);
        drop(inside);
        Self { runtime, tasks }
    }

    /// Stops all clients and passes on their panics.
    pub(crate) fn stop(mut self, rig: &Rig) {
        rig.stop();
        self.runtime.block_on(async {
            while let Some(task) = self.tasks.join_next().await {
                if let Err(error) = task {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        });
    }
}

/// Waits until a counter has reached `goal`. False: it stood still for `patience`.
pub(crate) fn reached(counter: &AtomicU32, goal: u32, patience: Duration) -> bool {
    moves_until(|| counter.load(Relaxed), |count| count >= goal, patience)
}

/// Waits until no job is open. False: their number stood still for `patience`.
pub(crate) fn settled(rig: &Rig, patience: Duration) -> bool {
    moves_until(|| rig.open(), |open| open == 0, patience)
}

fn moves_until<T: PartialEq + Copy>(
    read: impl Fn() -> T,
    enough: impl Fn(T) -> bool,
    patience: Duration,
) -> bool {
    let (mut last, mut moved) = (read(), Instant::now());
    while !enough(last) {
        std::thread::sleep(Duration::from_millis(2));
        let now = read();
        if now != last {
            (last, moved) = (now, Instant::now());
        } else if moved.elapsed() > patience {
            return false;
        }
    }
    true
}

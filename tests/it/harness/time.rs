//! Time as a client sees it, and waiting with an end.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// How long a test waits for something that should come at once: long, because a machine may be
/// busy, and free, because only a failing test waits for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// A protobuf duration.
pub(crate) fn proto(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap()
}

/// Milliseconds as a duration.
pub(crate) const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The wall clock of this machine, which is also the server's.
pub(crate) fn wall_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// A timestamp of the server as time since the epoch.
pub(crate) trait SinceEpoch {
    fn since_epoch(&self) -> Duration;
}

impl SinceEpoch for Option<prost_types::Timestamp> {
    fn since_epoch(&self) -> Duration {
        let time = self.expect("the server left a timestamp out");
        Duration::new(u64::try_from(time.seconds).unwrap(), u32::try_from(time.nanos).unwrap())
    }
}

/// A time since the epoch as a timestamp.
pub(crate) fn timestamp(since_epoch: Duration) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: i64::try_from(since_epoch.as_secs()).unwrap(),
        nanos: i32::try_from(since_epoch.subsec_nanos()).unwrap(),
    }
}

/// Waits for `future`, at most [`PATIENCE`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing happened for {PATIENCE:?}"),
    }
}

/// Looks at something that sends no events (a process, a file, a number on a server) until it is
/// as wanted, at most [`PATIENCE`].
pub(crate) async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_in(PATIENCE, what, look).await
}

/// As [`eventually`], for what takes as long by its own rules.
pub(crate) async fn eventually_in<T>(
    patience: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> T {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(value) = look().await {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: not so after {patience:?}");
        tokio::time::sleep(millis(10)).await;
    }
}

/// Whether a missing tool is a failure rather than a skip.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| ci == "true")
}

/// Whether the long form of a test is asked for: RINGQ_TEST_THOROUGH=1.
pub(crate) fn thorough() -> bool {
    std::env::var("RINGQ_TEST_THOROUGH").is_ok_and(|value| value == "1")
}

/// A duration of the server.
#[track_caller]
pub(crate) fn duration(duration: &Option<prost_types::Duration>) -> Duration {
    Duration::try_from(duration.expect("the server left a duration out")).unwrap()
}

//! Time as clients see it, and waiting with a limit.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// Guard of a wait for an event, not a bound on its time: a machine may be busy, and only a failing test waits that
/// long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Converts to a protobuf duration.
pub(crate) fn proto(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap()
}

/// Converts milliseconds to a duration.
pub(crate) const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns the wall clock of this machine, which is also the server's.
pub(crate) fn wall_now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Conversion of a server timestamp to time since the epoch.
pub(crate) trait SinceEpoch {
    fn since_epoch(&self) -> Duration;
}

impl SinceEpoch for Option<prost_types::Timestamp> {
    fn since_epoch(&self) -> Duration {
        let time = self.expect("the server left a timestamp out");
        Duration::new(u64::try_from(time.seconds).unwrap(), u32::try_from(time.nanos).unwrap())
    }
}

/// Converts a time since the epoch to a timestamp.
pub(crate) fn timestamp(since_epoch: Duration) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: i64::try_from(since_epoch.as_secs()).unwrap(),
        nanos: i32::try_from(since_epoch.subsec_nanos()).unwrap(),
    }
}

/// Waits for `future`, at most [`PATIENCE`].
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    within_long(PATIENCE, what, future).await
}

/// Waits for `future` like [`within`], for something that takes long by itself.
pub(crate) async fn within_long<T>(
    patience: Duration,
    what: &str,
    future: impl Future<Output = T>,
) -> T {
    match tokio::time::timeout(patience, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing happened for {patience:?}"),
    }
}

/// Waits that long for `future`; `None`: it goes on. For things that must not happen, and for calls that are given up.
pub(crate) async fn for_a_while<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(time, future).await.ok()
}

/// Polls something that sends no events (a process, a file, a number on a server) until it returns a value, at most
/// [`PATIENCE`].
pub(crate) async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_in(PATIENCE, what, look).await
}

/// Polls like [`eventually`], with a limit of its own.
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

/// Returns whether a missing tool is a failure instead of a skip.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| ci == "true")
}

/// Returns whether the long form of a test is requested: RINGQ_TEST_THOROUGH=1.
pub(crate) fn thorough() -> bool {
    std::env::var("RINGQ_TEST_THOROUGH").is_ok_and(|value| value == "1")
}

/// Converts a duration of the server.
#[track_caller]
pub(crate) fn duration(duration: &Option<prost_types::Duration>) -> Duration {
    Duration::try_from(duration.expect("the server left a duration out")).unwrap()
}

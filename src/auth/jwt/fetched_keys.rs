//! Keys of an issuer that come from a URL, kept up to date by a task.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::backoff::{Backoff, BackoffRange};

use super::jwks_fetch;
use super::jwks_url::JwksUrl;
use super::key_set::KeySet;

/// Intervals between fetches.
#[derive(Clone, Copy, Debug)]
pub(super) struct FetchIntervals {
    /// Interval after a fetch that succeeded.
    pub(super) regular: Duration,
    /// Least interval when a token names a key that is not known.
    pub(super) early: Duration,
    /// Delays after failed fetches.
    pub(super) retries: BackoffRange,
}

/// Intervals of a server.
const INTERVALS: FetchIntervals = FetchIntervals {
    regular: Duration::from_secs(300),
    early: Duration::from_secs(10),
    retries: BackoffRange { min: Duration::from_secs(1), max: Duration::from_secs(60) },
};

/// Keys that a task fetches at once, and then again and again. The last ones stay in use while fetches fail, for as
/// long as the process lives. The task ends with the value.
#[derive(Debug)]
pub struct FetchedKeys {
    state: Arc<State>,
    _task: AbortOnDropHandle<()>,
}

/// State shared with the task.
#[derive(Debug)]
struct State {
    /// Number that rises with each change of keys.
    generation: Arc<watch::Sender<u64>>,
    early: Duration,
    last: RwLock<LastFetch>,
    /// Notified when a token names a key that is not known.
    wanted: Notify,
    /// True after the first fetch, whatever its result.
    is_tried: watch::Sender<bool>,
}

/// Results of the fetches so far.
#[derive(Debug, Default)]
struct LastFetch {
    /// Keys of the last fetch that succeeded.
    keys: Option<Arc<KeySet>>,
    /// Time at which the last fetch began; `None`: it failed, or there was none.
    began: Option<Instant>,
}

// === impl FetchedKeys ===

impl FetchedKeys {
    /// Starts the task, within a runtime. It raises `generation` whenever the keys change.
    pub(in crate::auth) fn start(url: JwksUrl, generation: Arc<watch::Sender<u64>>) -> FetchedKeys {
        let place = url.uri().to_string();
        let fetch = move || {
            let url = url.clone();
            async move { jwks_fetch::fetch(&url).await }
        };
        FetchedKeys::start_with(place, fetch, INTERVALS, generation)
    }

    /// Starts the task with these fetches and intervals.
    pub(super) fn start_with<F, R>(
        place: String,
        fetch: F,
        intervals: FetchIntervals,
        generation: Arc<watch::Sender<u64>>,
    ) -> FetchedKeys
    where
        F: Fn() -> R + Send + 'static,
        R: Future<Output = Result<Bytes, String>> + Send + 'static,
    {
        let state = Arc::new(State {
            generation,
            early: intervals.early,
            last: RwLock::default(),
            wanted: Notify::new(),
            is_tried: watch::Sender::new(false),
        });
        let task = run(Arc::clone(&state), place, fetch, intervals);
        FetchedKeys { state, _task: AbortOnDropHandle::new(tokio::spawn(task)) }
    }

    /// Returns the keys; `None`: no fetch has succeeded yet.
    pub(in crate::auth) fn keys(&self) -> Option<Arc<KeySet>> {
        self.state.last.read().keys.clone()
    }

    /// Returns whether a key that is not among the keys may exist, because they were not fetched a moment ago. Then
    /// they are fetched early.
    pub(in crate::auth) fn may_be_outdated(&self) -> bool {
        let began = self.state.last.read().began;
        self.state.wanted.notify_one();
        began.is_none_or(|began| began.elapsed() >= self.state.early)
    }

    /// Waits for the result of the first fetch.
    pub(in crate::auth) async fn tried(&self) {
        // The sender lives as long as this value.
        let _ = self.state.is_tried.subscribe().wait_for(|is_tried| *is_tried).await;
    }
}

// === impl State ===

impl State {
    /// Puts the answer of a fetch that began at this time in force, and returns the keys if they are others.
    fn accept(&self, text: &Bytes, began: Instant) -> Result<Option<Arc<KeySet>>, String> {
        let keys = Arc::new(KeySet::parse(text).map_err(|error| format!("the answer {error}"))?);
        let mut last = self.last.write();
        last.began = Some(began);
        if last.keys.as_ref() == Some(&keys) {
            return Ok(None);
        }
        last.keys = Some(Arc::clone(&keys));
        drop(last);
        self.generation.send_modify(|generation| *generation += 1);
        Ok(Some(keys))
    }

    /// Notes that a fetch failed, and returns whether there are keys of an earlier one.
    fn fail(&self) -> bool {
        let mut last = self.last.write();
        last.began = None;
        last.keys.is_some()
    }
}

async fn run<F, R>(state: Arc<State>, url: String, fetch: F, intervals: FetchIntervals)
where
    F: Fn() -> R,
    R: Future<Output = Result<Bytes, String>>,
{
    let mut retries = Backoff::new(intervals.retries);
    loop {
        let began = Instant::now();
        let fetched = fetch().await;
        let pause = match fetched.and_then(|text| state.accept(&text, began)) {
            Ok(changed) => {
                if let Some(keys) = changed {
                    let (keys, unusable) = (keys.len(), keys.unusable());
                    tracing::info!(url, keys, unusable, "keys for JSON Web Tokens fetched");
                }
                retries.reset();
                intervals.regular
            }
            Err(error) => {
                let retry = retries.next_delay();
                match state.fail() {
                    true => tracing::warn!(
                        url,
                        error,
                        ?retry,
                        "keys for JSON Web Tokens not fetched again: the former ones stay in use"
                    ),
                    false => tracing::warn!(
                        url,
                        error,
                        ?retry,
                        "keys for JSON Web Tokens not fetched: calls with such tokens are refused"
                    ),
                }
                retry
            }
        };
        state.is_tried.send_replace(true);
        let early = async {
            state.wanted.notified().await;
            sleep_until(began + intervals.early).await;
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = early => {}
        }
    }
}

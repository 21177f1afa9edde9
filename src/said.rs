//! What was said a moment ago, so that a log is not flooded by what happens thousands of times a second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What is said, in two words that are known when the program is built: so there are few of them.
pub(crate) type Words = (&'static str, &'static str);

/// When what was said last.
#[derive(Debug)]
pub(crate) struct Said {
    every: Duration,
    at: Mutex<HashMap<Words, Instant>>,
}

// === impl Said ===

impl Said {
    /// The same is said this often at most.
    pub(crate) fn new(every: Duration) -> Said {
        Said { every, at: Mutex::default() }
    }

    /// Whether that was not said just now; then it counts as said.
    pub(crate) fn is_news(&self, what: Words) -> bool {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_news = at.get(&what).is_none_or(|&at| now.duration_since(at) >= self.every);
        if is_news {
            at.insert(what, now);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_same_is_news_again_after_a_while_and_other_things_at_once() {
        let said = Said::new(Duration::from_secs(30));
        assert!(said.is_news(("claim", "FULL")) && said.is_news(("claim", "UNAVAILABLE")));
        assert!(!said.is_news(("claim", "FULL")));
        tokio::time::advance(Duration::from_secs(30)).await;
        assert!(said.is_news(("claim", "FULL")));
    }
}

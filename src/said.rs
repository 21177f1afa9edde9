//! What was said a moment ago, so that a log is not flooded by what happens thousands of times a second.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Things that are remembered at most. Beyond that those that have not been said lately are forgotten, and new ones
/// share one place while there are none.
const THINGS_MAX: usize = 1_024;
/// Between the words of a thing.
const BETWEEN: &str = "\n";

/// When what was said last, and how often it was not said since.
#[derive(Debug)]
pub(crate) struct Said {
    every: Duration,
    things: Mutex<HashMap<String, Thing>>,
}

#[derive(Debug)]
struct Thing {
    at: Instant,
    suppressed: u64,
}

/// It is to be said, and with it how often it was not since it was said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct News {
    suppressed: u64,
}

// === impl Said ===

impl Said {
    /// The same is said this often at most.
    pub(crate) fn new(every: Duration) -> Said {
        Said { every, things: Mutex::default() }
    }

    /// Whether that was not said just now; then it counts as said, else it is counted. The words that tell one thing
    /// from another are few: none that a caller makes up.
    pub(crate) fn news(&self, words: &[&str]) -> Option<News> {
        self.news_of(words, 1)
    }

    /// The same of what has happened so many times.
    pub(crate) fn news_of(&self, words: &[&str], times: u64) -> Option<News> {
        let mut things = self.things.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_old = |thing: &Thing| now.duration_since(thing.at) >= self.every;
        let mut what = words.join(BETWEEN);
        if things.len() >= THINGS_MAX && !things.contains_key(&what) {
            things.retain(|_, thing| !is_old(thing));
            if things.len() >= THINGS_MAX {
                what.clear();
            }
        }
        match things.get_mut(&what) {
            Some(thing) if !is_old(thing) => {
                thing.suppressed += times;
                None
            }
            said => {
                let suppressed = said.map_or(0, |thing| thing.suppressed);
                things.insert(what, Thing { at: now, suppressed: 0 });
                Some(News { suppressed })
            }
        }
    }
}

// === impl News ===

impl News {
    /// How often it was not said since it was said last; none where that is never.
    pub(crate) fn suppressed(self) -> Option<u64> {
        Some(self.suppressed).filter(|&suppressed| suppressed > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(30);

    /// How often it was suppressed, if it is to be said.
    fn said(said: &Said, words: &[&str]) -> Option<u64> {
        said.news(words).map(|news| news.suppressed().unwrap_or(0))
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_is_news_again_after_a_while_and_other_things_at_once() {
        let log = Said::new(EVERY);
        assert_eq!(said(&log, &["claim", "FULL"]), Some(0));
        assert_eq!(said(&log, &["claim", "UNAVAILABLE"]), Some(0));
        assert_eq!(said(&log, &["claim", "FULL"]), None);
        tokio::time::advance(EVERY).await;
        assert!(said(&log, &["claim", "FULL"]).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_not_said_is_counted_once() {
        let log = Said::new(EVERY);
        for expected in [Some(0), None, None] {
            assert_eq!(said(&log, &["claim"]), expected);
        }
        assert_eq!(log.news_of(&["claim"], 5), None);
        tokio::time::advance(EVERY).await;
        assert_eq!(said(&log, &["claim"]), Some(7));
        tokio::time::advance(EVERY).await;
        assert_eq!(said(&log, &["claim"]), Some(0));
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_things_there_are_few_are_remembered() {
        let log = Said::new(EVERY);
        let all: Vec<String> = (0..2 * THINGS_MAX).map(|n| n.to_string()).collect();
        let count = |all: &[String]| all.iter().filter(|n| log.news(&[n]).is_some()).count();
        let told = count(&all);
        assert!((THINGS_MAX..=THINGS_MAX + 1).contains(&told), "{told}");
        assert!(log.things.lock().unwrap().len() <= THINGS_MAX + 1);
        tokio::time::advance(EVERY).await;
        assert_eq!(count(&all[..THINGS_MAX]), THINGS_MAX, "the old ones make room");
    }
}

//! Catches a panic of a handler: its call returns INTERNAL, and other calls go on.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `poll`; logs a panic in it and returns `None`.
///
/// A future that panicked must not be polled again.
pub(super) fn caught<T>(poll: impl FnOnce() -> T) -> Option<T> {
    // The panic may have left state half changed, but the future is dropped and nothing reads that state again.
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(value) => Some(value),
        Err(panic) => {
            tracing::error!(panic = text(&*panic), "a handler panicked; its call returns INTERNAL");
            None
        }
    }
}

fn text(panic: &(dyn Any + Send)) -> &str {
    let literal = panic.downcast_ref::<&str>().copied();
    literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_caught_with_their_text() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| panic!("on {}", "purpose")), None::<()>);
        assert_eq!(text(&"literal"), "literal");
        assert_eq!(text(&"owned".to_owned()), "owned");
        assert_eq!(text(&7), "no text");
    }
}

//! A handler that panics answers INTERNAL and takes nobody else down.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `poll`; a panic in it is logged, and `None`.
///
/// What panicked must not be polled again.
pub(super) fn caught<T>(poll: impl FnOnce() -> T) -> Option<T> {
    // Nothing that the panic may have left half done is looked at again: the future is dropped.
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(value) => Some(value),
        Err(panic) => {
            tracing::error!(panic = text(&*panic), "a handler panicked");
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

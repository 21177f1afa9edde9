//! Numbers: signed in the contract, unsigned in the server.

use super::{Checks, FieldPath};

/// Converts a count.
pub(crate) fn to_int32(count: impl TryInto<i32>) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

/// Converts a count that may be large.
pub(crate) fn to_int64(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

/// Reads a count of at most `max`, to which a larger one is lowered; 0 stands for `default`.
pub(crate) fn capped(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: i32,
    default: u32,
    max: u32,
) -> u32 {
    match u32::try_from(given) {
        Ok(0) => default,
        Ok(given) => given.min(max),
        Err(_) => {
            checks.invalid(path, format!("must be 1 to {max}, or 0 for {default}"));
            default
        }
    }
}

/// Reads a count where 0 stands for none; `meaning` is the meaning of 0 in the error text.
pub(crate) fn or_zero(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: i64,
    meaning: &str,
) -> Option<u64> {
    let count = u64::try_from(given);
    if count.is_err() {
        checks.invalid(path, format!("must not be negative; 0 means {meaning}"));
    }
    count.ok().filter(|&count| count > 0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::noted;
    use super::*;

    #[test]
    fn more_than_a_type_can_hold_is_its_most() {
        assert_eq!(
            [to_int32(7_u32), to_int32(u32::MAX), to_int32(usize::MAX)],
            [7, i32::MAX, i32::MAX]
        );
        assert_eq!([to_int64(7_u64), to_int64(u64::MAX)], [7, i64::MAX]);
    }

    #[test]
    fn zero_is_the_default_and_more_is_lowered() {
        let checks = &mut Checks::default();
        let counts = [0, 1, 64, 65, i32::MAX].map(|n| capped(checks, FieldPath::ROOT, n, 16, 64));
        assert_eq!(counts, [16, 1, 64, 64, 64]);
        let counts = [0, 1, i64::MAX].map(|n| or_zero(checks, FieldPath::ROOT, n, "no limit"));
        assert_eq!(counts, [None, Some(1), Some(u64::MAX / 2)]);
        assert_eq!(noted(|checks| _ = capped(checks, FieldPath::ROOT, 65, 16, 64)), []);
    }

    #[test]
    fn negative_counts_are_refused() {
        let path = FieldPath::ROOT.field("f");
        let invalid = [("f".to_owned(), "INVALID_FIELD")];
        assert_eq!(noted(|checks| _ = capped(checks, path, -1, 16, 64)), invalid);
        assert_eq!(noted(|checks| _ = or_zero(checks, path, -1, "no limit")), invalid);
    }
}

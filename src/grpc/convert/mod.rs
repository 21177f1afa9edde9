//! Conversion between messages of the contract and values of [`crate::domain`]. Every mistake of a client is refused
//! here, with the path of the field and the accepted values; code behind this module has nothing to check again.
//!
//! A conversion records every violation of its message in [`Checks`] and goes on, so that a client receives all of
//! them at once. It destructures the message: after a new field is added, it does not compile until the field is read
//! or refused.
//!
//! # Names
//! - A whole request is read by a function with the name of its RPC: `enqueue`, `list_jobs`. It takes the request,
//!   and returns its values or [`InvalidRequest`].
//! - A part of a request is read by a function with the plain name of the part: `topic`, `duration`, `job_state`. It
//!   takes the [`Checks`] and the [`FieldPath`] of the part, and returns a value to go on with.
//! - A part of an answer is made by a function with `to_` before the contract's name of it: `to_job`, `to_job_state`,
//!   `to_int64`. It cannot fail: a value beyond the range of the contract becomes its maximum.

pub(super) mod delivery;
pub(super) mod enqueue;
pub(super) mod enums;
pub(super) mod explain;
pub(super) mod group;
pub(super) mod job;
pub(super) mod list;
pub(super) mod metadata;
pub(super) mod names;
pub(super) mod number;
pub(super) mod payload;
pub(super) mod purge;
pub(super) mod redrive;
pub(super) mod reschedule;
pub(super) mod retry;
pub(super) mod scaler;
pub(super) mod schedule;
pub(super) mod settle;
pub(super) mod shard;
pub(super) mod spec;
pub(super) mod stream;
pub(super) mod time;
pub(super) mod topic;
pub(super) mod topic_policy;
pub(super) mod worker;

use std::fmt;

use crate::domain::limit;

use super::reason::Reason;

/// Number of characters of a key in a path, at most: a client may send any key.
const KEY_CHARS_MAX: usize = limit::TOPIC_BYTES_MAX;

/// Path of a field in a request. It lives on the stack and costs nothing until it is written into a violation.
#[derive(Clone, Copy)]
pub(super) struct FieldPath<'a> {
    parent: Option<&'a FieldPath<'a>>,
    name: &'static str,
    index: Option<usize>,
    /// Key of an entry of a map, as the client sent it.
    key: Option<&'a str>,
}

/// Violation in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    /// Path of the field: `job.retry.delays[2]`.
    pub(super) field: String,
    /// Reason of the error.
    pub(super) reason: Reason,
    /// Accepted values.
    pub(super) text: String,
    /// Feature that this server lacks, if that is the violation.
    pub(super) feature: Option<&'static str>,
}

/// Refused request, with all of its violations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InvalidRequest(pub(super) Vec<Violation>);

/// Collects the violations of one message.
#[derive(Debug, Default)]
pub(super) struct Checks {
    found: Vec<Violation>,
}

/// End of a text that was cut.
const CUT_MARK: &str = "…";

/// Returns a text for people, which is cut at a character and marked where it has more than `max` bytes: it is not worth
/// the failure of the call.
pub(super) fn text_for_people(mut text: String, max: usize) -> String {
    if text.len() > max {
        let ends = (0..=max.saturating_sub(CUT_MARK.len())).rev();
        let end = ends.into_iter().find(|&end| text.is_char_boundary(end));
        text.truncate(end.unwrap_or(0));
        text.push_str(CUT_MARK);
    }
    text
}

// === impl FieldPath ===

impl<'a> FieldPath<'a> {
    /// Path of the message itself.
    pub(super) const ROOT: FieldPath<'static> =
        FieldPath { parent: None, name: "", index: None, key: None };

    /// Returns the path of a field of the message at this path.
    pub(super) fn field(&'a self, name: &'static str) -> FieldPath<'a> {
        FieldPath { parent: Some(self), name, index: None, key: None }
    }

    /// Returns the path of an item of a repeated field of the message at this path.
    pub(super) fn item(&'a self, name: &'static str, index: usize) -> FieldPath<'a> {
        FieldPath { parent: Some(self), name, index: Some(index), key: None }
    }

    /// Returns the path of an entry of a map of the message at this path.
    pub(super) fn entry(&'a self, name: &'static str, key: &'a str) -> FieldPath<'a> {
        FieldPath { parent: Some(self), name, index: None, key: Some(key) }
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}")?;
            if parent.parent.is_some() {
                f.write_str(".")?;
            }
        }
        f.write_str(self.name)?;
        self.index.map_or(Ok(()), |index| write!(f, "[{index}]"))?;
        self.key.map_or(Ok(()), |key| write!(f, "[{key:.KEY_CHARS_MAX$}]"))
    }
}

// === impl Checks ===

impl Checks {
    /// Refuses a value that is not allowed at all.
    pub(super) fn invalid(&mut self, path: FieldPath<'_>, text: impl Into<String>) {
        self.refuse(path, Reason::InvalidField, text.into(), None);
    }

    /// Refuses a value that is over a limit.
    pub(super) fn too_large(&mut self, path: FieldPath<'_>, text: impl Into<String>) {
        self.refuse(path, Reason::TooLarge, text.into(), None);
    }

    /// Refuses a field whose feature this server does not have.
    pub(super) fn unsupported(&mut self, path: FieldPath<'_>, feature: &'static str) {
        let text = format!("needs the feature {feature}, which this server does not have");
        self.refuse(path, Reason::FeatureUnsupported, text, Some(feature));
    }

    /// Returns the parsed value, or records why it was refused.
    pub(super) fn check<T, E: fmt::Display>(
        &mut self,
        path: FieldPath<'_>,
        parsed: Result<T, E>,
    ) -> Option<T> {
        parsed.map_err(|error| self.invalid(path, error.to_string())).ok()
    }

    /// Refuses `bytes` over `max`.
    pub(super) fn at_most_bytes(&mut self, path: FieldPath<'_>, bytes: usize, max: usize) {
        if bytes > max {
            self.too_large(path, format!("must have at most {max} bytes, not {bytes}"));
        }
    }

    /// Refuses a list that is longer than `max`.
    pub(super) fn at_most_items(&mut self, path: FieldPath<'_>, items: usize, max: usize) {
        if items > max {
            self.too_large(path, format!("must have at most {max} items, not {items}"));
        }
    }

    /// Refuses a list that is empty or longer than `max`.
    pub(super) fn between_one_and(&mut self, path: FieldPath<'_>, items: usize, max: usize) {
        if items == 0 {
            self.invalid(path, format!("must have 1 to {max} items"));
        }
        self.at_most_items(path, items, max);
    }

    /// Returns the converted value, unless anything was refused.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<T, InvalidRequest> {
        match value {
            Some(value) if self.found.is_empty() => Ok(value),
            _ => Err(InvalidRequest(self.found)),
        }
    }

    fn refuse(
        &mut self,
        path: FieldPath<'_>,
        reason: Reason,
        text: String,
        feature: Option<&'static str>,
    ) {
        self.found.push(Violation { field: path.to_string(), reason, text, feature });
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns fields and reasons of a refusal, in order.
    pub(in crate::grpc) fn refused<T>(
        result: Result<T, InvalidRequest>,
    ) -> Vec<(String, &'static str)> {
        let violations = result.err().map_or(Vec::new(), |invalid| invalid.0);
        violations.into_iter().map(|v| (v.field, v.reason.name())).collect()
    }

    /// Returns fields and reasons of a conversion that takes its checks as an argument.
    pub(in crate::grpc) fn noted(convert: impl FnOnce(&mut Checks)) -> Vec<(String, &'static str)> {
        let mut checks = Checks::default();
        convert(&mut checks);
        refused(checks.finish(Some(())))
    }

    #[test]
    fn paths_read_like_field_accesses() {
        let (root, items) = (FieldPath::ROOT, "items");
        let item = root.item(items, 3);
        let follow_up = item.item("enqueue", 1);
        assert_eq!(follow_up.field("topic").to_string(), "items[3].enqueue[1].topic");
        assert_eq!(root.field("topic").to_string(), "topic");
        assert_eq!(root.entry("topic_weights", "a.*").to_string(), "topic_weights[a.*]");
        assert_eq!(root.entry("m", &"k".repeat(1_000)).to_string().len(), 3 + KEY_CHARS_MAX);
        assert_eq!(root.to_string(), "");
    }

    #[test]
    fn a_text_for_people_is_cut_at_a_character_and_marked() {
        for character in ["a", "ä", "€", "𝄞"] {
            for length in [0, 1, 2, 7, 1_000] {
                let text = character.repeat(length);
                for max in [3, 4, 5, 6, 7, 8, 1_000, 4_096] {
                    let cut = text_for_people(text.clone(), max);
                    if text.len() <= max {
                        assert_eq!(cut, text);
                        continue;
                    }
                    let kept = cut.strip_suffix(CUT_MARK).unwrap();
                    assert!(text.starts_with(kept), "{cut}");
                    assert!(cut.len() <= max && cut.len() + character.len() > max, "{cut} {max}");
                }
            }
        }
    }

    #[test]
    fn every_violation_is_kept_in_order() {
        let found = noted(|checks| {
            checks.invalid(FieldPath::ROOT.field("a"), "no");
            checks.at_most_bytes(FieldPath::ROOT.field("b"), 11, 10);
            checks.unsupported(FieldPath::ROOT.field("c"), "groups");
            checks.between_one_and(FieldPath::ROOT.field("d"), 0, 10);
        });
        let fields: Vec<_> = found.iter().map(|(f, r)| (f.as_str(), *r)).collect();
        assert_eq!(
            fields,
            [
                ("a", "INVALID_FIELD"),
                ("b", "TOO_LARGE"),
                ("c", "FEATURE_UNSUPPORTED"),
                ("d", "INVALID_FIELD")
            ]
        );
    }
}

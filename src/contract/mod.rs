//! The public contract: conversion between its messages and values of [`crate::domain`], and every rule about input.
//! Every mistake of a client is refused here, with the path of the field and the accepted values; code behind this
//! module has nothing to check again.
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

pub(crate) mod delivery;
pub(crate) mod duration_text;
pub(crate) mod enqueue;
pub(crate) mod enums;
pub(crate) mod explain;
pub(crate) mod group;
pub(crate) mod job;
pub(crate) mod list;
pub(crate) mod metadata;
pub(crate) mod names;
pub(crate) mod number;
pub(crate) mod payload;
pub(crate) mod purge;
pub(crate) mod reason;
pub(crate) mod redrive;
pub(crate) mod reschedule;
pub(crate) mod retry;
pub(crate) mod scaler;
pub(crate) mod schedule;
pub(crate) mod settle;
pub(crate) mod shard;
pub(crate) mod spec;
pub(crate) mod stream;
mod text_form;
pub(crate) mod time;
pub(crate) mod topic;
pub(crate) mod topic_file;
pub(crate) mod topic_limits;
pub(crate) mod topic_policy;
pub(crate) mod topic_settings;
pub(crate) mod worker;

use std::fmt;

use crate::domain::limit;

use reason::Reason;

/// Number of characters of a key in a path, at most: a client may send any key.
const KEY_CHARS_MAX: usize = limit::TOPIC_BYTES_MAX;

/// Path of a field in a request. It lives on the stack and costs nothing until it is written into a violation.
#[derive(Clone, Copy)]
pub(crate) struct FieldPath<'a> {
    parent: Option<&'a FieldPath<'a>>,
    name: &'a str,
    index: Option<usize>,
    /// Key of an entry of a map, as the client sent it.
    key: Option<&'a str>,
}

/// Violation in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Path of the field: `job.retry.delays[2]`.
    pub(crate) field: String,
    /// Reason of the error.
    pub(crate) reason: Reason,
    /// Accepted values.
    pub(crate) text: String,
    /// Feature that this server lacks, if that is the violation.
    pub(crate) feature: Option<&'static str>,
}

/// Refused request, with all of its violations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidRequest(pub(super) Vec<Violation>);

/// Collects the violations of one message.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    found: Vec<Violation>,
}

/// End of a text that was cut.
const CUT_MARK: &str = "…";

/// Returns a text for people, which is cut at a character and marked where it has more than `max` bytes: it is not worth
/// the failure of the call.
pub(crate) fn text_for_people(mut text: String, max: usize) -> String {
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
    pub(crate) const ROOT: FieldPath<'static> =
        FieldPath { parent: None, name: "", index: None, key: None };

    /// Returns the path of a field of the message at this path.
    pub(crate) fn field(&'a self, name: &'a str) -> FieldPath<'a> {
        FieldPath { parent: Some(self), name, index: None, key: None }
    }

    /// Returns the path of an item of a repeated field of the message at this path.
    pub(crate) fn item(&'a self, name: &'a str, index: usize) -> FieldPath<'a> {
        FieldPath { parent: Some(self), name, index: Some(index), key: None }
    }

    /// Returns the path of an entry of a map of the message at this path.
    pub(crate) fn entry(&'a self, name: &'a str, key: &'a str) -> FieldPath<'a> {
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
    pub(crate) fn invalid(&mut self, path: FieldPath<'_>, text: impl Into<String>) {
        self.refuse(path, Reason::InvalidField, text.into(), None);
    }

    /// Refuses a value that is over a limit.
    pub(crate) fn too_large(&mut self, path: FieldPath<'_>, text: impl Into<String>) {
        self.refuse(path, Reason::TooLarge, text.into(), None);
    }

    /// Refuses a field whose feature this server does not have.
    pub(crate) fn unsupported(&mut self, path: FieldPath<'_>, feature: &'static str) {
        let text = format!("needs the feature {feature}, which this server does not have");
        self.refuse(path, Reason::FeatureUnsupported, text, Some(feature));
    }

    /// Returns the parsed value, or records why it was refused.
    pub(crate) fn check<T, E: fmt::Display>(
        &mut self,
        path: FieldPath<'_>,
        parsed: Result<T, E>,
    ) -> Option<T> {
        parsed.map_err(|error| self.invalid(path, error.to_string())).ok()
    }

    /// Refuses `bytes` over `max`.
    pub(crate) fn at_most_bytes(&mut self, path: FieldPath<'_>, bytes: usize, max: usize) {
        if bytes > max {
            self.too_large(path, format!("must have at most {max} bytes, not {bytes}"));
        }
    }

    /// Refuses a list that is longer than `max`.
    pub(crate) fn at_most_items(&mut self, path: FieldPath<'_>, items: usize, max: usize) {
        if items > max {
            self.too_large(path, format!("must have at most {max} items, not {items}"));
        }
    }

    /// Refuses a list that is empty or longer than `max`.
    pub(crate) fn between_one_and(&mut self, path: FieldPath<'_>, items: usize, max: usize) {
        if items == 0 {
            self.invalid(path, format!("must have 1 to {max} items"));
        }
        self.at_most_items(path, items, max);
    }

    /// Returns the converted value, unless anything was refused.
    pub(crate) fn finish<T>(self, value: Option<T>) -> Result<T, InvalidRequest> {
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
pub(crate) mod tests {
    use super::*;

    /// Returns fields and reasons of a refusal, in order.
    pub(crate) fn refused<T>(result: Result<T, InvalidRequest>) -> Vec<(String, &'static str)> {
        let violations = result.err().map_or(Vec::new(), |invalid| invalid.0);
        violations.into_iter().map(|v| (v.field, v.reason.name())).collect()
    }

    /// Returns fields and reasons of a conversion that takes its checks as an argument.
    pub(crate) fn noted(convert: impl FnOnce(&mut Checks)) -> Vec<(String, &'static str)> {
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

//! Patterns of topics: one name, or all names with a prefix.

use std::fmt;

use super::name::{InvalidName, TopicName};

/// A topic name, or all topics with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TopicPattern {
    /// The topic with exactly this name.
    Exact(TopicName),
    /// Every topic whose name begins with this text (the glob without its `*`).
    Prefix(String),
}

// === impl TopicPattern ===

impl TopicPattern {
    /// Parses a name, `PREFIX*`, or `*`.
    ///
    /// # Errors
    /// [`InvalidName`], with the accepted form.
    pub fn parse(text: &str) -> Result<TopicPattern, InvalidName> {
        match text.strip_suffix('*') {
            None => TopicName::try_new(text).map(TopicPattern::Exact),
            Some("") => Ok(TopicPattern::Prefix(String::new())),
            // A prefix of a valid name is a valid name, too.
            Some(prefix) => {
                TopicName::try_new(prefix).map(|_| TopicPattern::Prefix(prefix.to_owned()))
            }
        }
    }

    /// Returns whether the topic matches the pattern.
    #[must_use]
    pub fn matches(&self, topic: &TopicName) -> bool {
        match self {
            TopicPattern::Exact(name) => name == topic,
            TopicPattern::Prefix(prefix) => topic.as_str().starts_with(prefix),
        }
    }

    /// Returns the name, or the prefix.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            TopicPattern::Exact(name) => name.as_str(),
            TopicPattern::Prefix(prefix) => prefix,
        }
    }

    /// Returns whether every topic that matches `other` matches this pattern.
    #[must_use]
    pub fn includes(&self, other: &TopicPattern) -> bool {
        match (self, other) {
            (_, TopicPattern::Exact(name)) => self.matches(name),
            (TopicPattern::Prefix(wide), TopicPattern::Prefix(narrow)) => narrow.starts_with(wide),
            (TopicPattern::Exact(_), TopicPattern::Prefix(_)) => false,
        }
    }

    /// Returns the pattern of the topics that match both: one of the two, if any topic does.
    #[must_use]
    pub fn intersection(&self, other: &TopicPattern) -> Option<TopicPattern> {
        if self.includes(other) {
            Some(other.clone())
        } else if other.includes(self) {
            Some(self.clone())
        } else {
            None
        }
    }
}

/// Formats the pattern as in a request.
impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TopicPattern::Exact(name) => name.fmt(f),
            TopicPattern::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> TopicPattern {
        TopicPattern::parse(text).unwrap()
    }

    #[test]
    fn patterns_are_names_or_prefixes() {
        for good in ["a", "a*", "a.*", "*", "billing.eu:v2*"] {
            assert_eq!(pattern(good).to_string(), good);
        }
        for bad in ["", "**", "*a", "a*b", "a**", ".*", "ringq.*", "ringq.x"] {
            assert!(TopicPattern::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn two_patterns_share_what_matches_both() {
        for (a, b, both) in [
            ("*", "a", Some("a")),
            ("*", "a*", Some("a*")),
            ("a*", "a.b*", Some("a.b*")),
            ("a*", "a", Some("a")),
            ("a.*", "a", None),
            ("a", "a", Some("a")),
            ("a", "b", None),
            ("a*", "b*", None),
            ("a.b*", "a.c*", None),
        ] {
            let both = both.map(pattern);
            assert_eq!(pattern(a).intersection(&pattern(b)), both, "{a} {b}");
            assert_eq!(pattern(b).intersection(&pattern(a)), both, "{b} {a}");
        }
    }
}

//! Patterns of topics: one name, or all names with a prefix.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound::{Included, Unbounded};

use super::name::{InvalidName, TopicName};

/// A topic name, or all topics with a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// Values by prefix, of which the longest that a text begins with is found by a few comparisons, however many there are.
#[derive(Clone, Debug)]
pub struct PrefixMap<V>(BTreeMap<String, V>);

// === impl PrefixMap ===

impl<V> Default for PrefixMap<V> {
    fn default() -> PrefixMap<V> {
        PrefixMap(BTreeMap::new())
    }
}

impl<V> PrefixMap<V> {
    /// Sets the value of a prefix, or removes it.
    pub fn set(&mut self, prefix: &str, value: Option<V>) {
        match value {
            Some(value) => drop(self.0.insert(prefix.to_owned(), value)),
            None => drop(self.0.remove(prefix)),
        }
    }

    /// Returns the longest prefix that `text` begins with, and its value.
    #[must_use]
    pub fn longest(&self, text: &str) -> Option<(&str, &V)> {
        let mut part = text;
        loop {
            // All prefixes of the text are up to it in the order. If the last one up to it is none, the others are no
            // longer than what the two have in common.
            let (prefix, value) =
                self.0.range::<str, _>((Unbounded, Included(part))).next_back()?;
            let same = prefix.bytes().zip(part.bytes()).take_while(|(a, b)| a == b).count();
            if same == prefix.len() {
                return Some((prefix, value));
            }
            part = part.get(..same)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_is_that_of_a_search_through_all() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = seed | 1;
        let mut word = |letters: u64| {
            let mut text = String::new();
            loop {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                if random.is_multiple_of(5) || text.len() > 9 {
                    return text;
                }
                text.push(char::from(b'a' + u8::try_from(random / 8 % letters).unwrap()));
            }
        };
        for count in [0, 1, 2, 13, 400] {
            let prefixes: Vec<String> = (0..count).map(|_| word(3)).collect();
            let mut map = PrefixMap::default();
            prefixes.iter().for_each(|prefix| map.set(prefix, Some(prefix.len())));
            for _ in 0..300 {
                let text = word(4);
                let matching = prefixes.iter().filter(|prefix| text.starts_with(*prefix));
                let want = matching.max_by_key(|prefix| prefix.len());
                assert_eq!(
                    map.longest(&text).map(|(prefix, _)| prefix),
                    want.map(|p| &**p),
                    "{text}"
                );
            }
            prefixes.iter().for_each(|prefix| map.set(prefix, None));
            assert!(map.longest("a").is_none());
        }
    }

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

//! Topic of jobs that have crashed as often as they may.

use super::super::TopicName;
use super::super::name::InvalidName;

/// Setting of the crash topic on one level (a job, a topic).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CrashTopic {
    /// No crash topic, whatever the levels below have: the job becomes a dead letter.
    Off,
    /// The job moves to this topic.
    Topic(TopicName),
}

// === impl CrashTopic ===

impl CrashTopic {
    /// Text of [`CrashTopic::Off`]. No topic has this name: names begin with a letter or a digit.
    pub const OFF: &str = "-";

    /// Reads the text of a setting; an empty one inherits.
    ///
    /// # Errors
    /// [`InvalidName`], if the text is neither [`CrashTopic::OFF`] nor the name of a topic.
    pub fn parse(text: &str) -> Result<Option<CrashTopic>, InvalidName> {
        match text {
            "" => Ok(None),
            CrashTopic::OFF => Ok(Some(CrashTopic::Off)),
            name => TopicName::try_new(name).map(|name| Some(CrashTopic::Topic(name))),
        }
    }

    /// Reads the text of a setting that was checked before it was stored.
    #[must_use]
    pub fn stored(text: &str) -> CrashTopic {
        match text {
            CrashTopic::OFF => CrashTopic::Off,
            name => CrashTopic::Topic(TopicName::stored(name)),
        }
    }

    /// Returns the text of the setting.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            CrashTopic::Off => CrashTopic::OFF,
            CrashTopic::Topic(name) => name.as_str(),
        }
    }

    /// Returns the topic, unless moves are switched off.
    #[must_use]
    pub fn name(&self) -> Option<&TopicName> {
        match self {
            CrashTopic::Off => None,
            CrashTopic::Topic(name) => Some(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_inherits_switches_off_or_names_a_topic() {
        assert_eq!(CrashTopic::parse(""), Ok(None));
        for text in ["-", "crashed", "a.b"] {
            let parsed = CrashTopic::parse(text).unwrap().unwrap();
            assert_eq!(parsed.as_str(), text);
            assert_eq!(parsed, CrashTopic::stored(text));
            assert_eq!(parsed.name().is_none(), text == "-", "{text}");
        }
        for text in ["--", "-a", "a b", "ringq.x"] {
            assert!(CrashTopic::parse(text).is_err(), "{text}");
        }
    }
}

//! Files with policies of topics: `[topic."billing.*"]` tables, which are read again while the server runs.

use std::collections::BTreeMap;
use std::path::Path;

use prost_reflect::DynamicMessage;
use toml::{Table, Value};

use crate::domain::{TopicName, TopicPattern, TopicSettings, limit};
use crate::pb;
use crate::source_files::read_texts;

use super::text_form::{TableKeys, read_table};
use super::topic_settings::{TOPIC_SETTINGS, TopicSetting, by_descriptor, settings, table_keys};
use super::{Checks, FieldPath, InvalidRequest, Violation};

/// Keys of a file.
const KEYS: [&str; 2] = ["revision", "topic"];

/// Policies of a file, or of the files of a directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TopicFile {
    /// Greatest `revision` of the files.
    pub(crate) revision: u64,
    /// Settings by topic or pattern, in the order of their names.
    pub(crate) topics: BTreeMap<String, (TopicPattern, TopicSettings)>,
}

// === impl TopicFile ===

impl TopicFile {
    /// Reads a file, or each `*.toml` of a directory.
    ///
    /// # Errors
    /// A text for each mistake, which names the file and the place in it.
    pub(crate) fn read(path: &Path) -> Result<TopicFile, Vec<String>> {
        let (mut all, mut problems) = (TopicFile::default(), Vec::new());
        let texts = read_texts(path)?;
        if texts.is_empty() {
            return Err(vec![format!("{}: there is no *.toml file in it", path.display())]);
        }
        for (path, text) in texts {
            let place = |problem: String| format!("{}: {problem}", path.display());
            match TopicFile::parse(&text) {
                Err(found) => problems.extend(found.into_iter().map(place)),
                Ok(file) => {
                    all.revision = all.revision.max(file.revision);
                    for (name, settings) in file.topics {
                        if all.topics.insert(name.clone(), settings).is_some() {
                            problems
                                .push(place(format!("topic.{name:?}: another file has it, too")));
                        }
                    }
                }
            }
        }
        if all.topics.len() > limit::POLICIES_MAX {
            let max = limit::POLICIES_MAX;
            problems.push(format!("topic: there are more than {max} tables; use patterns"));
        }
        if problems.is_empty() { Ok(all) } else { Err(problems) }
    }

    /// Returns the settings that a topic gets from the file: its own, or those of the longest pattern that matches it; and
    /// the name that they stand under.
    pub(crate) fn settings(&self, topic: &TopicName) -> Option<(&str, &TopicSettings)> {
        let own = self.topics.get_key_value(topic.as_str());
        own.map(|(name, (_, settings))| (name.as_str(), settings))
            .or_else(|| self.longest_pattern(topic.as_str()))
    }

    /// Returns the pattern whose settings the topics of a table would have without the table.
    pub(crate) fn pattern_below(&self, name: &str) -> Option<(&str, &TopicSettings)> {
        match name.strip_suffix('*') {
            Some(prefix) => self.longest_pattern(prefix.get(..prefix.len().checked_sub(1)?)?),
            None => self.longest_pattern(name),
        }
    }

    fn longest_pattern(&self, text: &str) -> Option<(&str, &TopicSettings)> {
        (0..=text.len()).rev().find_map(|length| {
            let pattern = format!("{}*", text.get(..length)?);
            let (name, (_, settings)) = self.topics.get_key_value(&pattern)?;
            Some((name.as_str(), settings))
        })
    }

    /// Parses the text of one file.
    ///
    /// # Errors
    /// A text for each mistake, which names the place.
    pub(crate) fn parse(text: &str) -> Result<TopicFile, Vec<String>> {
        let table: Table = toml::from_str(text).map_err(|error| vec![format!("{error}")])?;
        let mut problems = Vec::new();
        for key in table.keys().filter(|key| !KEYS.contains(&key.as_str())) {
            problems.push(format!("{key}: there is no such key; keys are {}", KEYS.join(", ")));
        }
        let revision = table.get("revision").and_then(Value::as_integer);
        let revision = revision.and_then(|number| u64::try_from(number).ok()).filter(|n| *n > 0);
        if revision.is_none() {
            problems.push(
                "revision: must be a whole number from 1 on, greater than that of the last file"
                    .into(),
            );
        }
        let none = Table::new();
        let topics = match table.get("topic") {
            None => &none,
            Some(Value::Table(topics)) => topics,
            Some(_) => {
                problems.push("topic: is not written as [topic.\"NAME\"] tables".into());
                &none
            }
        };
        let empty = by_descriptor(&pb::Topic::default()).map_err(|problem| vec![problem])?;
        let keys = table_keys(&empty);
        let mut found = BTreeMap::new();
        for (name, value) in topics {
            let place = format!("topic.{name:?}");
            match (TopicPattern::parse(name), value.as_table()) {
                (Err(error), _) => problems.push(format!("{place}: {error}")),
                (_, None) => problems.push(format!("{place}: is no table")),
                (Ok(pattern), Some(table)) => {
                    match read_settings(&pattern, table, &keys, empty.clone()) {
                        Ok(settings) => drop(found.insert(name.clone(), (pattern, settings))),
                        Err(InvalidRequest(invalid)) => {
                            problems.extend(invalid.into_iter().map(|v| problem(&place, v)));
                        }
                    }
                }
            }
        }
        match (revision, problems.is_empty()) {
            (Some(revision), true) => Ok(TopicFile { revision, topics: found }),
            _ => Err(problems),
        }
    }
}

/// Reads the settings in the table of a topic or a pattern: its keys become fields of the message, which then passes
/// the checks of calls.
fn read_settings(
    pattern: &TopicPattern,
    table: &Table,
    keys: &TableKeys,
    mut message: DynamicMessage,
) -> Result<TopicSettings, InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    read_table(&mut checks, root, table, keys, &mut message);
    let topic: pb::Topic = checks.check(root, message.transcode_to()).unwrap_or_default();
    let name = match pattern {
        TopicPattern::Exact(name) => Some(name),
        TopicPattern::Prefix(_) => None,
    };
    let settings = settings(&mut checks, root, topic, name);
    if name.is_none() && !settings.group_weights.is_empty() {
        checks.invalid(root.field("group_weights"), "must stand at a topic, not at a pattern");
    }
    checks.finish(Some(settings))
}

/// Returns the text for a field of a table that breaks a rule.
fn problem(place: &str, Violation { field, text, .. }: Violation) -> String {
    let (first, rest) = field.split_at(field.find(['.', '[']).unwrap_or(field.len()));
    let setting = TOPIC_SETTINGS.iter().find(|setting| setting.field == first);
    let key = setting.map_or(first.to_owned(), TopicSetting::key);
    format!("{place}.{key}{rest}: {text}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::domain::CrashTopic;

    #[test]
    fn a_file_has_topics_and_patterns() {
        let file = TopicFile::parse(
            "revision = 7\n[topic.\"billing.*\"]\nlease = '5m'\npriority = 3\npriority_ageing = '10m'\n\
             [topic.orders]\nmax_payload_bytes = 10\ndead_retention = '30d'\nretention = '0s'\n\
             [topic.orders.retry]\nmax_attempts = 3\ndelays = ['1m', '5m']\njitter = 0\n",
        )
        .unwrap();
        assert_eq!((file.revision, file.topics.len()), (7, 2));
        let (pattern, billing) = &file.topics["billing.*"];
        assert_eq!(pattern.to_string(), "billing.*");
        assert_eq!((billing.lease, billing.priority), (Some(Duration::from_secs(300)), Some(3)));
        assert_eq!(billing.priority_ageing, Some(Duration::from_secs(600)));
        let (_, orders) = &file.topics["orders"];
        assert_eq!(orders.retry.max_attempts, Some(3));
        assert_eq!(orders.retry.delays, [60, 300].map(Duration::from_secs));
        assert_eq!((orders.retry.jitter, orders.retention), (Some(0.0), Some(Duration::ZERO)));
    }

    #[test]
    fn a_topic_gets_the_settings_of_the_longest_match() {
        let tables = ["*", "a.*", "a.b", "a.b*"].map(|name| format!("[topic.{name:?}]\n"));
        let file = TopicFile::parse(&format!("revision = 1\n{}", tables.concat())).unwrap();
        for (topic, want) in [("x", "*"), ("a.x", "a.*"), ("a.b", "a.b"), ("a.bc", "a.b*")] {
            let found = file.settings(&TopicName::stored(topic));
            assert_eq!(found.map(|(name, _)| name), Some(want), "{topic}");
        }
        for (name, want) in
            [("a.b*", Some("a.*")), ("a.b", Some("a.b*")), ("a.*", Some("*")), ("*", None)]
        {
            assert_eq!(file.pattern_below(name).map(|(name, _)| name), want, "{name}");
        }
    }

    #[test]
    fn a_crash_topic_is_another_topic_or_none() {
        let read = |name: &str, value: &str| {
            TopicFile::parse(&format!(
                "revision = 1\n[topic.{name:?}]\nretry = {{ max_crashes = 3, crash_topic = {value} }}\n"
            ))
        };
        for (name, value) in [("x", "crashed"), ("x", "-"), ("*", "crashed"), ("x", "x.crashed")] {
            let file = read(name, &format!("{value:?}")).unwrap();
            let setting = file.topics[name].1.retry.crash_topic.clone();
            assert_eq!(setting, Some(CrashTopic::stored(value)), "{name}");
        }
        for (value, problem) in [
            ("'x'", "must be another topic"),
            ("'a b'", "is not allowed"),
            ("7", "must be a text in quotes"),
        ] {
            let problems = read("x", value).unwrap_err();
            assert!(problems[0].starts_with("topic.\"x\".retry.crash_topic: "), "{problems:?}");
            assert!(problems[0].contains(problem), "{problems:?}");
        }
    }

    #[test]
    fn every_mistake_is_named_with_its_place() {
        let mistakes = TopicFile::parse(
            "topics = 1\n[topic.\"a b\"]\n[topic.x]\nlease = '0s'\nretention = 5\npriority = 10\nweight = 2\n\
             max_payload_bytes = 0\nmax_jobs = -1\non_full = 'drop'\ngroup_weights = { a = 'x', b = 0 }\n\
             retry = { multiplier = 0.5, delays = ['x'], tries = 3, jitter = 'much', max_attempts = 3000000000 }\n\
             [topic.\"x.*\"]\ngroup_weights = { a = 2 }\nretry = 5\n",
        )
        .unwrap_err();
        assert_eq!(
            mistakes,
            [
                "topics: there is no such key; keys are revision, topic",
                "revision: must be a whole number from 1 on, greater than that of the last file",
                "topic.\"a b\": ' ' is not allowed; use letters, digits and . _ : - (beginning with a letter or digit)",
                "topic.\"x\".group_weights: \"a\": must be a whole number",
                "topic.\"x\".max_payload_bytes: must not be 0; leave it out for the default",
                "topic.\"x\".on_full: must be \"reject\" or \"drop-oldest\"",
                "topic.\"x\".retention: must be a duration in quotes, like \"30s\" or \"1h30m\"",
                "topic.\"x\".retry.delays[0]: \"x\" is not a duration like 250ms, 30s, 5m or 1h30m: expected number at 0",
                "topic.\"x\".retry.jitter: must be a number",
                "topic.\"x\".retry.max_attempts: must be -2147483648 to 2147483647",
                "topic.\"x\".retry.tries: there is no such key; keys are max_attempts, delays, initial_delay, multiplier, \
                 max_delay, jitter, max_retry_duration, ignore_expired_leases, max_deliveries, max_crashes, crash_topic",
                "topic.\"x\".weight: there is no such key; keys are description, retry, lease, retention, dead_retention, \
                 priority, priority_ageing, max_payload_bytes, max_jobs, max_stored_bytes, on_full, group_weights",
                "topic.\"x\".retry.multiplier: must be a finite number of 1 or more, or 0 to inherit",
                "topic.\"x\".lease: must be 1s to 24h",
                "topic.\"x\".priority: must be 0 to 9",
                "topic.\"x\".max_jobs: must be 0 or more; 0: no limit",
                "topic.\"x\".group_weights: \"b\": must be 1 to 100",
                "topic.\"x.*\".retry: must be a table",
                "topic.\"x.*\".group_weights: must stand at a topic, not at a pattern",
            ]
        );
        for text in ["revision = 0", "revision = -1", "revision = 'x'", "topic = 1", "revision ="] {
            assert!(TopicFile::parse(text).is_err(), "{text}");
        }
    }
}

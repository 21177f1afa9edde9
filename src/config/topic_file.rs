//! Files with policies of topics: `[topic."billing.*"]` tables, which are read again while the server runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use toml::{Table, Value};

use crate::contract::duration_text::parse_duration;
use crate::domain::{
    CrashTopic, GroupName, InvalidRetry, OverflowPolicy, RetryOverrides, TopicName, TopicPattern,
    TopicSettings, limit,
};
use crate::source_files::read_texts;

/// Keys of a file.
const KEYS: [&str; 2] = ["revision", "topic"];
/// Keys of a topic, in the order in which they are listed in errors.
const TOPIC_KEYS: [&str; 12] = [
    "description",
    "lease",
    "retention",
    "dead_retention",
    "priority",
    "priority_ageing",
    "max_payload_bytes",
    "max_jobs",
    "max_stored_bytes",
    "on_full",
    "group_weights",
    "retry",
];
const RETRY_KEYS: [&str; 11] = [
    "max_attempts",
    "delays",
    "initial_delay",
    "multiplier",
    "max_delay",
    "jitter",
    "max_retry_duration",
    "ignore_expired_leases",
    "max_deliveries",
    "max_crashes",
    "crash_topic",
];

/// Policies of a file, or of the files of a directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TopicFile {
    /// Greatest `revision` of the files.
    pub revision: u64,
    /// Settings by topic or pattern, in the order of their names.
    pub topics: BTreeMap<String, (TopicPattern, TopicSettings)>,
}

/// Reader of a table. It goes on behind a mistake, so that none hides another.
struct TableReader<'t> {
    table: &'t Table,
    place: String,
    problems: &'t mut Vec<String>,
}

// === impl TopicFile ===

impl TopicFile {
    /// Reads a file, or each `*.toml` of a directory.
    ///
    /// # Errors
    /// A text for each mistake, which names the file and the place in it.
    pub fn read(path: &Path) -> Result<TopicFile, Vec<String>> {
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
    #[must_use]
    pub fn settings(&self, topic: &TopicName) -> Option<(&str, &TopicSettings)> {
        let own = self.topics.get_key_value(topic.as_str());
        own.map(|(name, (_, settings))| (name.as_str(), settings))
            .or_else(|| self.longest_pattern(topic.as_str()))
    }

    /// Returns the pattern whose settings the topics of a table would have without the table.
    #[must_use]
    pub fn pattern_below(&self, name: &str) -> Option<(&str, &TopicSettings)> {
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
    pub fn parse(text: &str) -> Result<TopicFile, Vec<String>> {
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
        let mut found = BTreeMap::new();
        for (name, value) in topics {
            let place = format!("topic.{name:?}");
            match (TopicPattern::parse(name), value.as_table()) {
                (Err(error), _) => problems.push(format!("{place}: {error}")),
                (_, None) => problems.push(format!("{place}: is no table")),
                (Ok(pattern), Some(table)) => {
                    let mut reader = TableReader { table, place, problems: &mut problems };
                    let settings = reader.settings();
                    if !settings.group_weights.is_empty() && name.ends_with('*') {
                        reader.problem("group_weights", "must stand at a topic, not at a pattern");
                    }
                    let crash_topic = settings.retry.crash_topic.as_ref();
                    if crash_topic.is_some_and(|setting| setting.as_str() == name) {
                        reader.problem("retry.crash_topic", "must be another topic");
                    }
                    found.insert(name.clone(), (pattern, settings));
                }
            }
        }
        match (revision, problems.is_empty()) {
            (Some(revision), true) => Ok(TopicFile { revision, topics: found }),
            _ => Err(problems),
        }
    }
}

// === impl TableReader ===

impl TableReader<'_> {
    fn settings(&mut self) -> TopicSettings {
        self.check_keys(&TOPIC_KEYS);
        let retention = Duration::ZERO..=limit::RETENTION_MAX;
        let settings = TopicSettings {
            description: self.description(),
            retry: RetryOverrides::default(),
            group_weights: self.group_weights(),
            lease: self.duration("lease", limit::LEASE_MIN..=limit::LEASE_MAX, "1s to 24h"),
            retention: self.duration("retention", retention.clone(), "0s to 366d"),
            dead_retention: self.duration("dead_retention", retention, "0s to 366d"),
            priority: self.integer("priority", 0..=i64::from(limit::PRIORITY_MAX)),
            priority_ageing: self.duration(
                "priority_ageing",
                Duration::ZERO..=limit::PRIORITY_AGEING_MAX,
                "0s to 24h",
            ),
            max_payload_bytes: self
                .integer("max_payload_bytes", 1..=limit::PAYLOAD_BYTES_MAX as i64),
            max_jobs: self.integer("max_jobs", 1..=i64::MAX),
            max_stored_bytes: self.integer("max_stored_bytes", 1..=i64::MAX),
            on_full: self.on_full(),
        };
        let retry = match self.table.get("retry") {
            None => return settings,
            Some(Value::Table(table)) => {
                let place = format!("{}.retry", self.place);
                TableReader { table, place, problems: self.problems }.retry()
            }
            Some(_) => {
                self.problem("retry", "must be a table");
                return settings;
            }
        };
        TopicSettings { retry, ..settings }
    }

    fn description(&mut self) -> String {
        let max = limit::TOPIC_TEXT_BYTES_MAX;
        match self.table.get("description") {
            None => String::new(),
            Some(Value::String(text)) if text.len() <= max => text.clone(),
            Some(_) => {
                self.problem("description", &format!("must be a text of at most {max} bytes"));
                String::new()
            }
        }
    }

    fn on_full(&mut self) -> OverflowPolicy {
        match self.table.get("on_full").map(Value::as_str) {
            None | Some(Some("reject")) => OverflowPolicy::Reject,
            Some(Some("drop-oldest")) => OverflowPolicy::DropOldest,
            Some(_) => {
                self.problem("on_full", "must be \"reject\" or \"drop-oldest\"");
                OverflowPolicy::Reject
            }
        }
    }

    fn group_weights(&mut self) -> BTreeMap<GroupName, u8> {
        const KEY: &str = "group_weights";
        let max = limit::GROUP_WEIGHT_MAX;
        let table = match self.table.get(KEY) {
            None => return BTreeMap::new(),
            Some(Value::Table(table)) if table.len() <= limit::GROUP_SETTINGS_MAX => table,
            Some(_) => {
                let text =
                    format!("must be a table of at most {} groups", limit::GROUP_SETTINGS_MAX);
                self.problem(KEY, &text);
                return BTreeMap::new();
            }
        };
        let mut weights = BTreeMap::new();
        for (name, value) in table {
            let weight = value.as_integer().and_then(|weight| u8::try_from(weight).ok());
            let weight = weight.filter(|weight| (1..=max).contains(weight));
            match (GroupName::try_new(name), weight) {
                (Ok(group), Some(weight)) => drop(weights.insert(group, weight)),
                (Err(error), _) => self.problem(KEY, &format!("{name:?}: {error}")),
                (_, None) => self.problem(KEY, &format!("{name:?}: must be 1 to {max}")),
            }
        }
        weights
    }

    fn retry(&mut self) -> RetryOverrides {
        self.check_keys(&RETRY_KEYS);
        let any = Duration::ZERO..=Duration::MAX;
        let count = i64::from(i32::MIN)..=i64::from(i32::MAX);
        let overrides = RetryOverrides {
            max_attempts: self.integer("max_attempts", count.clone()),
            delays: self.durations("delays"),
            initial_delay: self.duration("initial_delay", any.clone(), ""),
            multiplier: self.float("multiplier"),
            max_delay: self.duration("max_delay", any.clone(), ""),
            jitter: self.float("jitter"),
            max_retry_duration: self.duration("max_retry_duration", any, ""),
            ignore_expired_leases: self.boolean("ignore_expired_leases"),
            max_deliveries: self.integer("max_deliveries", count.clone()),
            max_crashes: self.integer("max_crashes", count),
            crash_topic: self.crash_topic(),
        };
        RetryOverrides::try_new(overrides).unwrap_or_else(|invalid: Vec<InvalidRetry>| {
            let place = &self.place;
            self.problems.extend(invalid.into_iter().map(|problem| format!("{place}.{problem}")));
            RetryOverrides::default()
        })
    }

    fn crash_topic(&mut self) -> Option<CrashTopic> {
        const KEY: &str = "crash_topic";
        let value = self.table.get(KEY)?;
        let problem = match value.as_str().map(CrashTopic::parse) {
            Some(Ok(setting)) => return setting,
            Some(Err(error)) => error.to_string(),
            None => "must be the name of a topic in quotes, or \"-\" for none".to_owned(),
        };
        self.problem(KEY, &problem);
        None
    }

    fn check_keys(&mut self, keys: &[&str]) {
        for key in self.table.keys().filter(|key| !keys.contains(&key.as_str())) {
            let problem = format!("there is no such key; keys are {}", keys.join(", "));
            self.problem(key, &problem);
        }
    }

    fn duration(
        &mut self,
        key: &str,
        range: std::ops::RangeInclusive<Duration>,
        accepted: &str,
    ) -> Option<Duration> {
        let value = self.table.get(key)?;
        let parsed = match value.as_str() {
            Some(text) => parse_duration(text),
            None => Err("must be a duration in quotes, like \"30s\" or \"1h30m\"".to_owned()),
        };
        match parsed {
            Ok(duration) if range.contains(&duration) => return Some(duration),
            Ok(_) => self.problem(key, &format!("must be {accepted}")),
            Err(problem) => self.problem(key, &problem),
        }
        None
    }

    fn durations(&mut self, key: &str) -> Vec<Duration> {
        let Some(value) = self.table.get(key) else { return Vec::new() };
        let texts: Option<Vec<_>> =
            value.as_array().and_then(|values| values.iter().map(Value::as_str).collect());
        let parsed = texts.map(|texts| texts.into_iter().map(parse_duration).collect());
        match parsed {
            Some(Ok(durations)) => return durations,
            Some(Err(problem)) => {
                let _: &String = &problem;
                self.problem(key, &problem);
            }
            None => self.problem(key, "must be a list of durations, like [\"1m\", \"5m\"]"),
        }
        Vec::new()
    }

    fn integer<T: TryFrom<i64>>(
        &mut self,
        key: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Option<T> {
        let value = self.table.get(key)?;
        let number = value.as_integer().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            let (min, max) = (range.start(), range.end());
            self.problem(key, &format!("must be a whole number from {min} to {max}"));
        }
        number
    }

    fn float(&mut self, key: &str) -> Option<f64> {
        let value = self.table.get(key)?;
        let number = match value {
            Value::Float(number) => Some(*number),
            Value::Integer(number) => i32::try_from(*number).ok().map(f64::from),
            _ => None,
        };
        if number.is_none() {
            self.problem(key, "must be a number");
        }
        number
    }

    fn boolean(&mut self, key: &str) -> Option<bool> {
        let value = self.table.get(key)?;
        if value.as_bool().is_none() {
            self.problem(key, "must be true or false");
        }
        value.as_bool()
    }

    fn problem(&mut self, key: &str, text: &str) {
        self.problems.push(format!("{}.{key}: {text}", self.place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("7", "must be the name of a topic"),
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
             max_payload_bytes = 0\nretry = { multiplier = 0.5, delays = ['x'], tries = 3, jitter = 'much' }\n",
        )
        .unwrap_err();
        let begin: Vec<_> = mistakes.iter().map(|text| text.split(':').next().unwrap()).collect();
        assert_eq!(
            begin,
            [
                "topics",
                "revision",
                "topic.\"a b\"",
                "topic.\"x\".weight",
                "topic.\"x\".lease",
                "topic.\"x\".retention",
                "topic.\"x\".priority",
                "topic.\"x\".max_payload_bytes",
                "topic.\"x\".retry.tries",
                "topic.\"x\".retry.delays",
                "topic.\"x\".retry.jitter",
                "topic.\"x\".retry.multiplier must be a finite number of 1 or more",
            ]
        );
        for text in ["revision = 0", "revision = -1", "revision = 'x'", "topic = 1", "revision ="] {
            assert!(TopicFile::parse(text).is_err(), "{text}");
        }
    }
}

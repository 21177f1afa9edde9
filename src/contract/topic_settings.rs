//! The settings of a topic, one row each: its field in the contract, its rule, and its names and help in files and
//! flags. Calls, files and commands know a setting by its row alone.

use std::collections::{BTreeMap, HashMap};
use std::convert::identity;
use std::time::Duration;

use prost_reflect::{DynamicMessage, ReflectMessage as _};

use crate::canonical_json;
use crate::domain::{GroupName, OverflowPolicy, TopicName, TopicSettings, limit};
use crate::pb;

use super::number::{to_int32, to_int64};
use super::text_form::{self, TableKeys};
use super::time::{AGEING, LEASE, RETENTION, duration, to_duration};
use super::{Checks, FieldPath, InvalidRequest, retry, spec, text_for_people};

type Span = prost_types::Duration;

/// Setting of a topic.
#[derive(Debug)]
pub(crate) struct TopicSetting {
    /// Field of [`pb::Topic`].
    pub(crate) field: &'static str,
    /// Name for people, with hyphens.
    pub(crate) name: &'static str,
    /// Flags that set it, or parts of it.
    flags: &'static [SettingFlag],
    /// Moves the field of a topic to the settings, if its rule allows it. The name is that of the topic, if it is one.
    read: fn(&mut Checks, FieldPath<'_>, &mut pb::Topic, Option<&TopicName>, &mut TopicSettings),
    /// Writes the setting to the field of a topic.
    write: fn(&TopicSettings, &mut pb::Topic),
    /// Copies the setting.
    copy: fn(&TopicSettings, &mut TopicSettings),
}

/// Setting with its value as text, which is empty where the default holds.
pub(crate) type SettingText = (&'static TopicSetting, String);

/// Flag that sets a setting or a part of it.
#[derive(Debug)]
pub(crate) struct SettingFlag {
    /// Name without hyphens in front.
    pub(crate) name: &'static str,
    /// Field of [`pb::Topic`], and the field in its message if the flag sets only that.
    pub(crate) path: &'static [&'static str],
    /// Form of the value. Of a list it ends with `,…`.
    pub(crate) value: &'static str,
    /// One line of help.
    pub(crate) help: &'static str,
    /// Values of an enumeration, each with its help.
    pub(crate) choices: &'static [(&'static str, &'static str)],
}

/// Makes the row of a setting: its fields in [`pb::Topic`] and [`TopicSettings`], the functions that turn the value of
/// one into that of the other, its name, and the value, the help and the choices of its flag.
macro_rules! setting {
    ($field:ident, $own:ident, $read:path, $write:path, $name:literal, $value:literal, $help:literal $(, $choice:expr)*) => {
        TopicSetting {
            field: stringify!($field),
            name: $name,
            flags: &[SettingFlag {
                choices: &[$($choice),*],
                ..flag($name, &[stringify!($field)], $value, $help)
            }],
            read: |checks, path, topic, _, settings| {
                let given = std::mem::take(&mut topic.$field);
                settings.$own = $read(checks, path.field(stringify!($field)), given);
            },
            write: |settings, topic| topic.$field = $write(settings.$own.clone()),
            copy: |from, to| to.$own.clone_from(&from.$own),
        }
    };
}

/// All settings, in the order in which errors and outputs list them.
#[rustfmt::skip]
pub(crate) static TOPIC_SETTINGS: [TopicSetting; 12] = [
    setting!(description, description, description, identity, "description", "TEXT", "A text for people"),
    TopicSetting {
        field: "retry",
        name: "retry",
        flags: &[
            flag("max-attempts", &["retry", "max_attempts"], "NUMBER", "Failures allowed; 1: no retry, -1: no limit"),
            flag("retry-delays", &["retry", "delays"], "DURATION,…", "The waits between attempts; the last one repeats"),
            flag("max-crashes", &["retry", "max_crashes"], "N",
                "Crashes of a job's workers allowed: expired leases, and streams that they broke; -1: no limit"),
            flag("crash-topic", &["retry", "crash_topic"], "TOPIC",
                "Topic to which a job moves at its last crash; -: none, it is DEAD"),
        ],
        read: |checks, path, topic, name, settings| {
            settings.retry = retry::retry(checks, path.field("retry"), topic.retry.take(), name);
        },
        write: |settings, topic| topic.retry = retry::to_retry_policy(settings.retry.clone()),
        copy: |from, to| to.retry.clone_from(&from.retry),
    },
    setting!(lease_duration, lease, lease, to_span, "lease", "DURATION",
        "Lease of a job, unless it or its worker names one, 1s to 24h"),
    setting!(retention, retention, retention, to_span, "retention", "DURATION",
        "Time for which finished jobs are kept"),
    setting!(dead_retention, dead_retention, retention, to_span, "dead-retention", "DURATION",
        "Time for which dead letters are kept [default: 14d]"),
    setting!(priority, priority, spec::priority, to_priority, "priority", "0-9",
        "Priority of jobs that name none, 0 to 9; 9 goes first"),
    setting!(priority_ageing, priority_ageing, ageing, to_span, "priority-ageing", "DURATION",
        "Waiting time that one level of priority is worth, 0s to 24h; 0s: strict levels"),
    setting!(max_payload_bytes, max_payload_bytes, payload_max, to_payload_max, "max-payload-bytes", "BYTES",
        "Largest payload of a job in bytes [default: 1048576]"),
    setting!(max_jobs, max_jobs, maximum, to_maximum, "max-jobs", "NUMBER",
        "Jobs that may wait, over all shards [default: no limit]"),
    setting!(max_stored_bytes, max_stored_bytes, maximum, to_maximum, "max-stored-bytes", "BYTES",
        "Bytes that its stored jobs may have, over all shards [default: no limit]"),
    setting!(on_full, on_full, on_full, to_overflow_policy, "on-full", "RULE",
        "Rule for a new job of a full topic [default: reject]",
        ("reject", "Refuse it with TOPIC_FULL"),
        ("drop-oldest", "Expire the job of the lowest priority that has waited longest")),
    setting!(group_weights, group_weights, group_weights, to_group_weights, "group-weights", "GROUP=WEIGHT,…",
        "Weights of groups, 1 to 100; those that are not named have 1. Replaces all former ones"),
];

const fn flag(
    name: &'static str,
    path: &'static [&'static str],
    value: &'static str,
    help: &'static str,
) -> SettingFlag {
    SettingFlag { name, path, value, help, choices: &[] }
}

// === impl TopicSetting ===

impl TopicSetting {
    /// Returns the key in a file.
    pub(crate) fn key(&self) -> String {
        self.name.replace('-', "_")
    }

    /// Copies the setting.
    pub(super) fn copy(&self, from: &TopicSettings, to: &mut TopicSettings) {
        (self.copy)(from, to);
    }

    /// Returns whether the setting is set.
    pub(super) fn is_set(&self, settings: &TopicSettings) -> bool {
        let mut without = settings.clone();
        self.copy(&TopicSettings::default(), &mut without);
        without != *settings
    }
}

/// Returns the flags of all settings.
pub(crate) fn flags() -> impl Iterator<Item = &'static SettingFlag> {
    TOPIC_SETTINGS.iter().flat_map(|setting| setting.flags)
}

/// Reads the settings in the fields of a topic with this name, or of a pattern. Output-only fields are ignored, so that
/// a topic can be read, changed and sent back.
pub(super) fn settings(
    checks: &mut Checks,
    path: FieldPath<'_>,
    mut topic: pb::Topic,
    name: Option<&TopicName>,
) -> TopicSettings {
    let mut settings = TopicSettings::default();
    for setting in &TOPIC_SETTINGS {
        (setting.read)(checks, path, &mut topic, name, &mut settings);
    }
    settings
}

/// Writes settings to the fields of a topic.
pub(crate) fn to_settings(settings: &TopicSettings, mut topic: pb::Topic) -> pb::Topic {
    TOPIC_SETTINGS.iter().for_each(|setting| (setting.write)(settings, &mut topic));
    topic
}

/// Returns the fields of the settings by their keys in a file.
pub(super) fn table_keys(topic: &DynamicMessage) -> TableKeys {
    let field = |name| topic.descriptor().get_field_by_name(name);
    TOPIC_SETTINGS.iter().filter_map(|s| Some((s.key(), field(s.field)?))).collect()
}

/// Returns a topic by its descriptor.
///
/// # Errors
/// The compiled contract is broken.
pub(super) fn by_descriptor(topic: &pb::Topic) -> Result<DynamicMessage, String> {
    let mut message = DynamicMessage::new(canonical_json::message("ringq.v1.Topic")?);
    message.transcode_from(topic).map_err(|error| error.to_string())?;
    Ok(message)
}

/// Returns the topic with the values that flags give.
///
/// # Errors
/// The accepted form or range of the first value that is refused.
pub(crate) fn with_flags<'f>(
    topic: &pb::Topic,
    given: impl IntoIterator<Item = (&'f SettingFlag, &'f str)>,
) -> Result<pb::Topic, String> {
    let (mut checks, mut message) = (Checks::default(), by_descriptor(topic)?);
    for (flag, text) in given {
        text_form::read_text(&mut checks, flag.path, text, &mut message);
    }
    let topic: pb::Topic = message.transcode_to().map_err(|error| error.to_string())?;
    settings(&mut checks, FieldPath::ROOT, topic.clone(), None);
    let first = |InvalidRequest(found)| found.into_iter().next().map(|first| first.text);
    checks.finish(Some(topic)).map_err(|invalid| first(invalid).unwrap_or_default())
}

/// Returns the texts of all settings, in the order of the table.
///
/// # Errors
/// The compiled contract is broken.
pub(crate) fn texts(topic: &pb::Topic) -> Result<Vec<SettingText>, String> {
    let message = by_descriptor(topic)?;
    let text =
        |setting: &'static TopicSetting| (setting, text_form::show_field(&message, setting.field));
    Ok(TOPIC_SETTINGS.iter().map(text).collect())
}

fn description(_: &mut Checks, _: FieldPath<'_>, text: String) -> String {
    text_for_people(text, limit::TOPIC_TEXT_BYTES_MAX)
}

fn lease(checks: &mut Checks, path: FieldPath<'_>, given: Option<Span>) -> Option<Duration> {
    duration(checks, path, given.as_ref(), &LEASE)
}

fn retention(checks: &mut Checks, path: FieldPath<'_>, given: Option<Span>) -> Option<Duration> {
    duration(checks, path, given.as_ref(), &RETENTION)
}

fn ageing(checks: &mut Checks, path: FieldPath<'_>, given: Option<Span>) -> Option<Duration> {
    duration(checks, path, given.as_ref(), &AGEING)
}

fn to_span(duration: Option<Duration>) -> Option<Span> {
    duration.map(to_duration)
}

fn to_priority(priority: Option<u8>) -> Option<i32> {
    priority.map(i32::from)
}

fn payload_max(checks: &mut Checks, path: FieldPath<'_>, given: i32) -> Option<u32> {
    let max = u32::try_from(given).ok();
    let fits = max.is_some_and(|max| max as usize <= limit::PAYLOAD_BYTES_MAX);
    if !fits {
        checks.invalid(path, format!("must be 0 to {}", limit::PAYLOAD_BYTES_MAX));
    }
    max.filter(|max| *max > 0)
}

fn maximum(checks: &mut Checks, path: FieldPath<'_>, given: i64) -> Option<u64> {
    match u64::try_from(given) {
        Ok(max) => Some(max).filter(|max| *max > 0),
        Err(_) => {
            checks.invalid(path, "must be 0 or more; 0: no limit");
            None
        }
    }
}

fn to_payload_max(max: Option<u32>) -> i32 {
    max.map_or(0, to_int32)
}

fn to_maximum(max: Option<u64>) -> i64 {
    max.map_or(0, to_int64)
}

fn on_full(checks: &mut Checks, path: FieldPath<'_>, given: i32) -> OverflowPolicy {
    match pb::OverflowPolicy::try_from(given) {
        Ok(pb::OverflowPolicy::Unspecified | pb::OverflowPolicy::Reject) => OverflowPolicy::Reject,
        Ok(pb::OverflowPolicy::DropOldest) => OverflowPolicy::DropOldest,
        Err(_) => {
            checks.invalid(path, "must be REJECT or DROP_OLDEST");
            OverflowPolicy::Reject
        }
    }
}

fn to_overflow_policy(on_full: OverflowPolicy) -> i32 {
    match on_full {
        OverflowPolicy::Reject => pb::OverflowPolicy::Unspecified.into(),
        OverflowPolicy::DropOldest => pb::OverflowPolicy::DropOldest.into(),
    }
}

fn group_weights(
    checks: &mut Checks,
    path: FieldPath<'_>,
    given: HashMap<String, i32>,
) -> BTreeMap<GroupName, u8> {
    checks.at_most_items(path, given.len(), limit::GROUP_SETTINGS_MAX);
    let mut weights = BTreeMap::new();
    for (name, weight) in given {
        let max = limit::GROUP_WEIGHT_MAX;
        let weight = u8::try_from(weight).ok().filter(|weight| (1..=max).contains(weight));
        match (GroupName::try_new(&name), weight) {
            (Ok(group), Some(weight)) => drop(weights.insert(group, weight)),
            (Err(error), _) => checks.invalid(path, format!("{name:?}: {error}")),
            (_, None) => checks.invalid(path, format!("{name:?}: must be 1 to {max}")),
        }
    }
    weights
}

fn to_group_weights(weights: BTreeMap<GroupName, u8>) -> HashMap<String, i32> {
    let entry = |(group, weight): (GroupName, u8)| (group.as_str().to_owned(), weight.into());
    weights.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use prost_reflect::Kind;

    use super::super::topic_file::TopicFile;
    use super::*;

    /// Returns a value of a flag by its form.
    fn example(flag: &SettingFlag) -> &'static str {
        match flag.value {
            "TEXT" | "TOPIC" => "some-text",
            "DURATION" => "1h30m",
            "DURATION,…" => "1m,5m",
            "GROUP=WEIGHT,…" => "b=1,a=3",
            "RULE" => "drop-oldest",
            _ => "7",
        }
    }

    fn read(topic: pb::Topic) -> TopicSettings {
        let mut checks = Checks::default();
        let settings = settings(&mut checks, FieldPath::ROOT, topic, None);
        checks.finish(Some(settings)).unwrap()
    }

    #[test]
    fn a_value_is_the_same_in_flags_calls_files_and_outputs() {
        let given = flags().map(|flag| (flag, example(flag)));
        let topic = with_flags(&pb::Topic::default(), given).unwrap();
        let settings = read(topic.clone());
        assert!(TOPIC_SETTINGS.iter().all(|setting| setting.is_set(&settings)));
        assert_eq!(to_settings(&settings, pb::Topic::default()), topic);

        let mut copied = TopicSettings::default();
        TOPIC_SETTINGS.iter().for_each(|setting| setting.copy(&settings, &mut copied));
        assert_eq!(copied, settings);

        let texts = texts(&topic).unwrap().into_iter().map(|(s, text)| (s.key(), text));
        let texts: Vec<_> = texts.collect();
        let retry = "max_attempts 7, delays 1m/5m, max_crashes 7, crash_topic some-text";
        let wanted = [
            ("description", "some-text"),
            ("retry", retry),
            ("lease", "1h30m"),
            ("retention", "1h30m"),
            ("dead_retention", "1h30m"),
            ("priority", "7"),
            ("priority_ageing", "1h30m"),
            ("max_payload_bytes", "7"),
            ("max_jobs", "7"),
            ("max_stored_bytes", "7"),
            ("on_full", "drop-oldest"),
            ("group_weights", "a=3, b=1"),
        ];
        assert_eq!(texts, wanted.map(|(key, text)| (key.to_owned(), text.to_owned())));

        let mut file = "revision = 1\n[topic.x]\n".to_owned();
        for (key, text) in wanted {
            file += &match key {
                "retry" => "retry = { max_attempts = 7, delays = ['1m', '5m'], max_crashes = 7, \
                            crash_topic = 'some-text' }\n"
                    .to_owned(),
                "group_weights" => "group_weights = { a = 3, b = 1 }\n".to_owned(),
                _ if text == "7" => format!("{key} = {text}\n"),
                _ => format!("{key} = {text:?}\n"),
            };
        }
        assert_eq!(TopicFile::parse(&file).unwrap().topics["x"].1, settings);
    }

    #[test]
    fn flags_refuse_what_calls_refuse_and_what_sets_nothing() {
        let duration = "is not a duration like 250ms";
        for (name, text, problem) in [
            ("lease", "0s", "must be 1s to 24h"),
            ("lease", "-1s", "is negative"),
            ("lease", "5", duration),
            ("retry-delays", "1m,x", duration),
            ("max-attempts", "-2", "must be 1 or more, -1 for no limit"),
            ("max-attempts", "0", "must not be 0"),
            ("max-attempts", "3000000000", "must be -2147483648 to 2147483647"),
            ("max-jobs", "99999999999999999999", "must be a whole number"),
            ("max-jobs", "many", "must be a whole number"),
            ("max-payload-bytes", "1048577", "must be 0 to 1048576"),
            ("priority", "10", "must be 0 to 9"),
            ("on-full", "unspecified", "must be \"reject\" or \"drop-oldest\""),
            ("group-weights", "a", "\"a\": must be a whole number"),
            ("group-weights", "a=1,b=101", "\"b\": must be 1 to 100"),
            ("crash-topic", "a b", "is not allowed"),
        ] {
            let flag = flags().find(|flag| flag.name == name).unwrap();
            let found = with_flags(&pb::Topic::default(), [(flag, text)]).unwrap_err();
            assert!(found.contains(problem), "{name} {text}: {found}");
        }
        let priority = flags().find(|flag| flag.name == "priority").unwrap();
        let topic = with_flags(&pb::Topic::default(), [(priority, "0")]).unwrap();
        assert_eq!(topic.priority, Some(0));
    }

    #[test]
    fn choices_are_those_of_the_enumeration() {
        let topic = by_descriptor(&pb::Topic::default()).unwrap().descriptor();
        for flag in flags().filter(|flag| flag.path.len() == 1) {
            let Kind::Enum(names) = topic.get_field_by_name(flag.path[0]).unwrap().kind() else {
                assert!(flag.choices.is_empty(), "{}", flag.name);
                continue;
            };
            let names: Vec<_> =
                text_form::choices(&names).into_iter().map(|(name, _)| name).collect();
            let choices: Vec<_> = flag.choices.iter().map(|(name, _)| (*name).to_owned()).collect();
            assert_eq!(choices, names, "{}", flag.name);
        }
    }
}

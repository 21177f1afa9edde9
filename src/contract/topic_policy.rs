//! Settings and pauses of topics, as operators set and see them.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::domain::{GroupName, OverflowPolicy, Time, TopicName, TopicPause, TopicSettings, limit};
use crate::pb;
use crate::policies::PolicyView;
use crate::scheduler::etag;

use super::number::{to_int32, to_int64};
use super::time::{self, AGEING, LEASE, RETENTION, to_duration, to_timestamp};
use super::{Checks, FieldPath, InvalidRequest, names, retry, spec, text_for_people};

/// Fields that a mask may name, in the order of the message.
const FIELDS: [(&str, SettingField); 12] = [
    ("description", SettingField::Description),
    ("retry", SettingField::Retry),
    ("lease_duration", SettingField::Lease),
    ("retention", SettingField::Retention),
    ("dead_retention", SettingField::DeadRetention),
    ("priority", SettingField::Priority),
    ("priority_ageing", SettingField::PriorityAgeing),
    ("max_payload_bytes", SettingField::MaxPayloadBytes),
    ("max_jobs", SettingField::MaxJobs),
    ("max_stored_bytes", SettingField::MaxStoredBytes),
    ("on_full", SettingField::OnFull),
    ("group_weights", SettingField::GroupWeights),
];

/// Setting of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettingField {
    Description,
    Retry,
    Lease,
    Retention,
    DeadRetention,
    Priority,
    PriorityAgeing,
    MaxPayloadBytes,
    MaxJobs,
    MaxStoredBytes,
    OnFull,
    GroupWeights,
}

/// Values of an UpdateTopic request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TopicUpdate {
    pub(crate) name: TopicName,
    pub(crate) settings: TopicSettings,
    /// Fields to change.
    pub(crate) fields: Vec<SettingField>,
    pub(crate) etag: String,
    pub(crate) allow_missing: bool,
}

/// Values of a DeleteTopic request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicDeletion {
    pub(crate) name: TopicName,
    pub(crate) force: bool,
    pub(crate) etag: String,
}

// === impl SettingField ===

impl SettingField {
    /// Copies the setting.
    fn copy(self, from: &TopicSettings, to: &mut TopicSettings) {
        match self {
            SettingField::Description => to.description.clone_from(&from.description),
            SettingField::Retry => to.retry.clone_from(&from.retry),
            SettingField::Lease => to.lease = from.lease,
            SettingField::Retention => to.retention = from.retention,
            SettingField::DeadRetention => to.dead_retention = from.dead_retention,
            SettingField::Priority => to.priority = from.priority,
            SettingField::PriorityAgeing => to.priority_ageing = from.priority_ageing,
            SettingField::MaxPayloadBytes => to.max_payload_bytes = from.max_payload_bytes,
            SettingField::MaxJobs => to.max_jobs = from.max_jobs,
            SettingField::MaxStoredBytes => to.max_stored_bytes = from.max_stored_bytes,
            SettingField::OnFull => to.on_full = from.on_full,
            SettingField::GroupWeights => to.group_weights.clone_from(&from.group_weights),
        }
    }

    /// Returns whether the setting is set.
    fn is_set(self, settings: &TopicSettings) -> bool {
        let mut without = settings.clone();
        self.copy(&TopicSettings::default(), &mut without);
        without != *settings
    }
}

// === impl TopicUpdate ===

impl TopicUpdate {
    /// Returns the change of the settings.
    pub(crate) fn change(&self) -> impl Fn(&mut TopicSettings) + Send + Sync + 'static {
        let (fields, settings) = (self.fields.clone(), self.settings.clone());
        move |changed| fields.iter().for_each(|field| field.copy(&settings, changed))
    }
}

/// Reads a CreateTopic request: name, settings and etag.
pub(crate) fn create_topic(
    request: pb::CreateTopicRequest,
) -> Result<(TopicName, TopicSettings, String), InvalidRequest> {
    let mut checks = Checks::default();
    let pb::CreateTopicRequest { topic } = request;
    let topic = topic.unwrap_or_default();
    let etag = topic.etag.clone();
    let read = settings(&mut checks, FieldPath::ROOT.field("topic"), topic);
    checks.finish(read.map(|(name, settings)| (name, settings, etag)))
}

/// Reads an UpdateTopic request.
pub(crate) fn update_topic(request: pb::UpdateTopicRequest) -> Result<TopicUpdate, InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    let pb::UpdateTopicRequest { topic, update_mask, allow_missing } = request;
    let topic = topic.unwrap_or_default();
    let etag = topic.etag.clone();
    let read = settings(&mut checks, root.field("topic"), topic);
    let mask = root.field("update_mask");
    let paths = update_mask.unwrap_or_default().paths;
    let mut fields = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        match FIELDS.iter().find(|(name, _)| name == path) {
            Some((_, field)) => fields.push(*field),
            None => {
                let names = FIELDS.map(|(name, _)| name).join(", ");
                checks.invalid(mask.item("paths", index), format!("must be one of {names}"));
            }
        }
    }
    let update = read.map(|(name, settings)| {
        if paths.is_empty() {
            let all = FIELDS.iter().map(|(_, field)| *field);
            fields = all.filter(|field| field.is_set(&settings)).collect();
        }
        TopicUpdate { name, settings, fields, etag, allow_missing }
    });
    checks.finish(update)
}

/// Reads a DeleteTopic request.
pub(crate) fn delete_topic(
    request: pb::DeleteTopicRequest,
) -> Result<TopicDeletion, InvalidRequest> {
    let mut checks = Checks::default();
    let pb::DeleteTopicRequest { name, force, etag } = request;
    let name = names::topic(&mut checks, FieldPath::ROOT.field("name"), &name);
    checks.finish(name.map(|name| TopicDeletion { name, force, etag }))
}

/// Reads a PauseTopic request.
pub(crate) fn pause_topic(
    request: pb::PauseTopicRequest,
    now: Time,
) -> Result<(TopicName, TopicPause), InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    let pb::PauseTopicRequest { name, note, until_time } = request;
    let name = names::topic(&mut checks, root.field("name"), &name);
    let note = text_for_people(note, limit::TOPIC_TEXT_BYTES_MAX);
    let at = root.field("until_time");
    let until = until_time.and_then(|until| time::timestamp(&mut checks, at, &until));
    if until.is_some_and(|until| until <= now) {
        checks.invalid(at, "must be ahead of now");
    }
    checks.finish(name.map(|name| (name, TopicPause { until, note })))
}

/// Reads a ResumeTopic request.
pub(crate) fn resume_topic(request: &pb::ResumeTopicRequest) -> Result<TopicName, InvalidRequest> {
    let mut checks = Checks::default();
    let pb::ResumeTopicRequest { name } = request;
    let name = names::topic(&mut checks, FieldPath::ROOT.field("name"), name);
    checks.finish(name)
}

/// Reads the name and the settings of a topic. Output-only fields are ignored, so that a topic can be read, changed and
/// sent back.
fn settings(
    checks: &mut Checks,
    path: FieldPath<'_>,
    topic: pb::Topic,
) -> Option<(TopicName, TopicSettings)> {
    refuse_features(checks, path, &topic);
    let name = names::topic(checks, path.field("name"), &topic.name);
    let duration = |checks: &mut Checks, field, given: Option<prost_types::Duration>, range| {
        time::duration(checks, path.field(field), given.as_ref(), range)
    };
    let settings = TopicSettings {
        lease: duration(checks, "lease_duration", topic.lease_duration, &LEASE),
        retention: duration(checks, "retention", topic.retention, &RETENTION),
        dead_retention: duration(checks, "dead_retention", topic.dead_retention, &RETENTION),
        priority: spec::priority(checks, path.field("priority"), topic.priority),
        priority_ageing: duration(checks, "priority_ageing", topic.priority_ageing, &AGEING),
        max_payload_bytes: payload_max(checks, path, topic.max_payload_bytes),
        max_jobs: maximum(checks, path.field("max_jobs"), topic.max_jobs),
        max_stored_bytes: maximum(checks, path.field("max_stored_bytes"), topic.max_stored_bytes),
        on_full: on_full(checks, path.field("on_full"), topic.on_full),
        group_weights: group_weights(checks, path.field("group_weights"), topic.group_weights),
        retry: retry::retry(checks, path.field("retry"), topic.retry, name.as_ref()),
        description: text_for_people(topic.description, limit::TOPIC_TEXT_BYTES_MAX),
    };
    name.map(|name| (name, settings))
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

/// Reads a PauseGroup request: topic, group and note.
pub(crate) fn pause_group(
    request: pb::PauseGroupRequest,
) -> Result<(TopicName, Option<GroupName>, String), InvalidRequest> {
    let mut checks = Checks::default();
    let pb::PauseGroupRequest { topic, group, note } = request;
    let read = topic_and_group(&mut checks, &topic, &group);
    let note = text_for_people(note, limit::TOPIC_TEXT_BYTES_MAX);
    checks.finish(read.map(|(topic, group)| (topic, group, note)))
}

/// Reads a ResumeGroup request: topic and group.
pub(crate) fn resume_group(
    request: &pb::ResumeGroupRequest,
) -> Result<(TopicName, Option<GroupName>), InvalidRequest> {
    let mut checks = Checks::default();
    let pb::ResumeGroupRequest { topic, group } = request;
    let read = topic_and_group(&mut checks, topic, group);
    checks.finish(read)
}

/// Reads a topic and a group of it; the empty one has the jobs without a group.
fn topic_and_group(
    checks: &mut Checks,
    topic: &str,
    group: &str,
) -> Option<(TopicName, Option<GroupName>)> {
    let root = FieldPath::ROOT;
    let topic = names::topic(checks, root.field("topic"), topic);
    let group = match group {
        "" => None,
        name => Some(checks.check(root.field("group"), GroupName::try_new(name))?),
    };
    topic.map(|topic| (topic, group))
}

fn payload_max(checks: &mut Checks, path: FieldPath<'_>, given: i32) -> Option<u32> {
    let max = u32::try_from(given).ok();
    let fits = max.is_some_and(|max| max as usize <= limit::PAYLOAD_BYTES_MAX);
    if !fits {
        let text = format!("must be 0 to {}", limit::PAYLOAD_BYTES_MAX);
        checks.invalid(path.field("max_payload_bytes"), text);
    }
    max.filter(|max| *max > 0)
}

/// Refuses the fields whose features this server does not have: if they were ignored, a promise would be broken.
fn refuse_features(checks: &mut Checks, path: FieldPath<'_>, topic: &pb::Topic) {
    let features = [
        ("max_rate", topic.max_rate != 0.0, "topic_limits"),
        ("max_burst", topic.max_burst != 0, "topic_limits"),
        ("max_running", topic.max_running != 0, "topic_limits"),
        ("http_target", topic.http_target.is_some(), "http_dispatch"),
        ("max_running_per_group", topic.max_running_per_group != 0, "group_limits"),
        ("max_rate_per_group", topic.max_rate_per_group != 0.0, "group_limits"),
        ("on_success_topic", !topic.on_success_topic.is_empty(), "topic_hooks"),
        ("on_dead_topic", !topic.on_dead_topic.is_empty(), "topic_hooks"),
        ("max_dead_jobs", topic.max_dead_jobs != 0, "topic_limits"),
    ];
    for (field, is_set, feature) in features {
        if is_set {
            checks.unsupported(path.field(field), feature);
        }
    }
}

/// Converts a topic with the policies that are known at `now`.
pub(crate) fn to_topic(
    name: &TopicName,
    created: Time,
    policies: &PolicyView,
    now: Time,
) -> pb::Topic {
    let own = policies.of_topic(name).map(|policy| &**policy).filter(|policy| policy.is_live());
    let in_force = policies.in_force(name);
    let paused = own.filter(|policy| policy.is_paused(now)).and_then(|own| own.pause.as_ref());
    let state = if paused.is_some() { pb::TopicState::Paused } else { pb::TopicState::Active };
    let settings = in_force.and_then(|policy| policy.settings.clone()).unwrap_or_default();
    let revision = in_force.and_then(|policy| policies.file_revision(policy)).map(to_int64);
    let duration = |duration: Option<Duration>| duration.map(to_duration);
    pb::Topic {
        name: name.as_str().to_owned(),
        description: settings.description,
        state: state.into(),
        retry: retry::to_retry_policy(settings.retry),
        lease_duration: duration(settings.lease),
        retention: duration(settings.retention),
        dead_retention: duration(settings.dead_retention),
        priority_ageing: duration(settings.priority_ageing),
        max_payload_bytes: settings.max_payload_bytes.map_or(0, to_int32),
        create_time: Some(to_timestamp(created)),
        update_time: Some(to_timestamp(own.map_or(created, |own| own.update_time))),
        etag: etag(own),
        pause_until: paused.and_then(|pause| pause.until).map(to_timestamp),
        pause_note: paused.map(|pause| pause.note.clone()).unwrap_or_default(),
        max_jobs: settings.max_jobs.map_or(0, to_int64),
        max_stored_bytes: settings.max_stored_bytes.map_or(0, to_int64),
        on_full: match settings.on_full {
            OverflowPolicy::Reject => pb::OverflowPolicy::Unspecified.into(),
            OverflowPolicy::DropOldest => pb::OverflowPolicy::DropOldest.into(),
        },
        priority: settings.priority.map(i32::from),
        group_weights: settings
            .group_weights
            .into_iter()
            .map(|(group, weight)| (group.as_str().to_owned(), i32::from(weight)))
            .collect(),
        settings_from: in_force.map(|policy| policy.name.to_string()).unwrap_or_default(),
        file_revision: revision,
        ..pb::Topic::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    fn topic() -> pb::Topic {
        pb::Topic { name: "orders".into(), ..pb::Topic::default() }
    }

    fn update(topic: pb::Topic, paths: &[&str]) -> Result<TopicUpdate, InvalidRequest> {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let update_mask = Some(prost_types::FieldMask { paths });
        update_topic(pb::UpdateTopicRequest {
            topic: Some(topic),
            update_mask,
            allow_missing: false,
        })
    }

    #[test]
    fn each_wrong_setting_is_named() {
        let day = |days: i64| Some(prost_types::Duration { seconds: 86_400 * days, nanos: 0 });
        let wrong = pb::Topic {
            name: "a b".into(),
            lease_duration: day(2),
            retention: day(367),
            dead_retention: day(-1),
            priority: Some(10),
            priority_ageing: Some(prost_types::Duration { seconds: 86_400, nanos: 1 }),
            max_payload_bytes: 1 + (1 << 20),
            max_rate: 1.0,
            max_jobs: -1,
            max_stored_bytes: -1,
            on_full: 3,
            retry: Some(pb::RetryPolicy { multiplier: 0.5, ..pb::RetryPolicy::default() }),
            ..pb::Topic::default()
        };
        let found = refused(create_topic(pb::CreateTopicRequest { topic: Some(wrong) }));
        let fields: Vec<_> =
            found.iter().map(|(field, reason)| (field.as_str(), *reason)).collect();
        assert_eq!(
            fields,
            [
                ("topic.max_rate", "FEATURE_UNSUPPORTED"),
                ("topic.name", "INVALID_FIELD"),
                ("topic.lease_duration", "INVALID_FIELD"),
                ("topic.retention", "INVALID_FIELD"),
                ("topic.dead_retention", "INVALID_FIELD"),
                ("topic.priority", "INVALID_FIELD"),
                ("topic.priority_ageing", "INVALID_FIELD"),
                ("topic.max_payload_bytes", "INVALID_FIELD"),
                ("topic.max_jobs", "INVALID_FIELD"),
                ("topic.max_stored_bytes", "INVALID_FIELD"),
                ("topic.on_full", "INVALID_FIELD"),
                ("topic.retry.multiplier", "INVALID_FIELD"),
            ]
        );
        assert_eq!(
            refused(create_topic(pb::CreateTopicRequest::default())),
            [("topic.name".to_owned(), "INVALID_FIELD")]
        );
    }

    #[test]
    fn a_mask_names_the_fields_and_without_one_those_that_are_set() {
        let given = pb::Topic { priority: Some(0), description: "d".into(), ..topic() };
        let fields = |paths: &[&str]| update(given.clone(), paths).unwrap().fields;
        assert_eq!(fields(&[]), [SettingField::Description, SettingField::Priority]);
        assert_eq!(fields(&["retry"]), [SettingField::Retry]);
        assert_eq!(
            refused(update(topic(), &["retry", "state", "retry.jitter"])),
            [1, 2].map(|n| (format!("update_mask.paths[{n}]"), "INVALID_FIELD"))
        );
        let mut settings = TopicSettings {
            priority: Some(5),
            lease: Some(Duration::from_secs(9)),
            ..TopicSettings::default()
        };
        update(given, &["lease_duration", "priority"]).unwrap().change()(&mut settings);
        let want = TopicSettings { priority: Some(0), ..TopicSettings::default() };
        assert_eq!(settings, want, "a masked field that is not set gets its default back");
    }

    #[test]
    fn a_pause_ends_ahead_of_now() {
        let pause = |until: i64, note: &str| {
            let until_time = Some(prost_types::Timestamp { seconds: until, nanos: 0 });
            let (name, note) = ("orders".into(), note.into());
            pause_topic(pb::PauseTopicRequest { name, note, until_time }, Time(5_000_000))
        };
        let want = TopicPause { until: Some(Time(6_000_000)), note: "why".into() };
        assert_eq!(pause(6, "why").unwrap().1, want);
        assert_eq!(refused(pause(5, "")), [("until_time".to_owned(), "INVALID_FIELD")]);
        assert_eq!(pause(6, &"x".repeat(1_025)).unwrap().1.note.len(), 1_024, "cut and marked");
    }
}

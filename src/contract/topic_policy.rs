//! Settings and pauses of topics, as operators set and see them.

use crate::documents::DocumentView;
use crate::domain::{GroupName, Time, TopicName, TopicPause, TopicSettings, limit};
use crate::pb;
use crate::scheduler::etag;

use super::number::to_int64;
use super::time::{self, to_timestamp};
use super::topic_settings::{TOPIC_SETTINGS, TopicSetting, settings, to_settings};
use super::{Checks, FieldPath, InvalidRequest, names, text_for_people};

/// Values of an UpdateTopic request.
#[derive(Clone, Debug)]
pub(crate) struct TopicUpdate {
    pub(crate) name: TopicName,
    /// New values of the fields to change; the others are not set.
    pub(crate) settings: TopicSettings,
    /// Fields to change.
    fields: Vec<&'static TopicSetting>,
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
    let read = named_settings(&mut checks, FieldPath::ROOT.field("topic"), topic);
    checks.finish(read.map(|(name, settings)| (name, settings, etag)))
}

/// Reads an UpdateTopic request.
pub(crate) fn update_topic(request: pb::UpdateTopicRequest) -> Result<TopicUpdate, InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    let pb::UpdateTopicRequest { topic, update_mask, allow_missing } = request;
    let topic = topic.unwrap_or_default();
    let etag = topic.etag.clone();
    let read = named_settings(&mut checks, root.field("topic"), topic);
    let mask = root.field("update_mask");
    let paths = update_mask.unwrap_or_default().paths;
    let mut fields = Vec::new();
    for (index, path) in paths.iter().enumerate() {
        match TOPIC_SETTINGS.iter().find(|setting| setting.field == path) {
            Some(setting) => fields.push(setting),
            None => {
                let names = TOPIC_SETTINGS.each_ref().map(|setting| setting.field).join(", ");
                checks.invalid(mask.item("paths", index), format!("must be one of {names}"));
            }
        }
    }
    let update = read.map(|(name, given)| {
        if paths.is_empty() {
            fields = TOPIC_SETTINGS.iter().filter(|setting| setting.is_set(&given)).collect();
        }
        let mut settings = TopicSettings::default();
        fields.iter().for_each(|setting| setting.copy(&given, &mut settings));
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
    checks.finish(name.map(|name| (name, TopicPause { until, note, ..TopicPause::default() })))
}

/// Reads a ResumeTopic request.
pub(crate) fn resume_topic(request: &pb::ResumeTopicRequest) -> Result<TopicName, InvalidRequest> {
    let mut checks = Checks::default();
    let pb::ResumeTopicRequest { name } = request;
    let name = names::topic(&mut checks, FieldPath::ROOT.field("name"), name);
    checks.finish(name)
}

/// Reads the name and the settings of a topic.
fn named_settings(
    checks: &mut Checks,
    path: FieldPath<'_>,
    topic: pb::Topic,
) -> Option<(TopicName, TopicSettings)> {
    refuse_features(checks, path, &topic);
    let name = names::topic(checks, path.field("name"), &topic.name);
    let settings = settings(checks, path, topic, name.as_ref());
    name.map(|name| (name, settings))
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
    documents: &DocumentView,
    now: Time,
) -> pb::Topic {
    let document = documents.document_of(name).filter(|document| document.is_live());
    let own = document.and_then(|document| document.topic_policy());
    let in_force = documents.in_force(name);
    let paused = own.filter(|policy| policy.is_paused(now)).and_then(|own| own.pause.as_ref());
    let state = if paused.is_some() { pb::TopicState::Paused } else { pb::TopicState::Active };
    let settings = in_force.and_then(|policy| policy.settings.clone()).unwrap_or_default();
    let revision = in_force.and_then(|policy| documents.file_revision(policy)).map(to_int64);
    let topic = pb::Topic {
        name: name.as_str().to_owned(),
        state: state.into(),
        create_time: Some(to_timestamp(created)),
        update_time: Some(to_timestamp(document.map_or(created, |own| own.update_time))),
        etag: etag(document),
        pause_until: paused.and_then(|pause| pause.until).map(to_timestamp),
        pause_note: paused.map(|pause| pause.note.clone()).unwrap_or_default(),
        settings_from: in_force.map(|policy| policy.name.to_string()).unwrap_or_default(),
        file_revision: revision,
        ..pb::Topic::default()
    };
    to_settings(&settings, topic)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prost_reflect::{ReflectMessage as _, Value};

    use super::super::tests::refused;
    use super::super::topic_settings::by_descriptor;
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
                ("topic.retry.multiplier", "INVALID_FIELD"),
                ("topic.lease_duration", "INVALID_FIELD"),
                ("topic.retention", "INVALID_FIELD"),
                ("topic.dead_retention", "INVALID_FIELD"),
                ("topic.priority", "INVALID_FIELD"),
                ("topic.priority_ageing", "INVALID_FIELD"),
                ("topic.max_payload_bytes", "INVALID_FIELD"),
                ("topic.max_jobs", "INVALID_FIELD"),
                ("topic.max_stored_bytes", "INVALID_FIELD"),
                ("topic.on_full", "INVALID_FIELD"),
            ]
        );
        assert_eq!(
            refused(create_topic(pb::CreateTopicRequest::default())),
            [("topic.name".to_owned(), "INVALID_FIELD")]
        );
    }

    #[test]
    fn every_field_is_a_setting_or_refused_or_of_the_server() {
        let others = [
            "name",
            "state",
            "create_time",
            "update_time",
            "etag",
            "pause_until",
            "pause_note",
            "settings_from",
            "file_revision",
        ];
        let fields = by_descriptor(&topic()).unwrap().descriptor();
        let fields: Vec<_> = fields.fields().map(|field| field.name().to_owned()).collect();
        let is_setting = |name: &str| TOPIC_SETTINGS.iter().any(|setting| setting.field == name);
        for name in fields.iter().filter(|name| !is_setting(name) && !others.contains(&&***name)) {
            let mut topic = by_descriptor(&topic()).unwrap();
            let field = topic.descriptor().get_field_by_name(name).unwrap();
            let value = match Value::default_value(&field.kind()) {
                Value::F64(_) => Value::F64(1.0),
                Value::I32(_) => Value::I32(1),
                Value::I64(_) => Value::I64(1),
                Value::String(_) => Value::String("t".into()),
                message => message,
            };
            topic.set_field(&field, value);
            let topic = Some(topic.transcode_to().unwrap());
            let found = refused(create_topic(pb::CreateTopicRequest { topic }));
            assert_eq!(found, [(format!("topic.{name}"), "FEATURE_UNSUPPORTED")]);
        }
    }

    #[test]
    fn a_mask_names_the_fields_and_without_one_those_that_are_set() {
        let given = pb::Topic { priority: Some(0), description: "d".into(), ..topic() };
        let fields = |paths: &[&str]| -> Vec<_> {
            let fields = update(given.clone(), paths).unwrap().fields;
            fields.into_iter().map(|setting| setting.field).collect()
        };
        assert_eq!(fields(&[]), ["description", "priority"]);
        assert_eq!(fields(&["retry"]), ["retry"]);
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
        let want = TopicPause {
            until: Some(Time(6_000_000)),
            note: "why".into(),
            ..TopicPause::default()
        };
        assert_eq!(pause(6, "why").unwrap().1, want);
        assert_eq!(refused(pause(5, "")), [("until_time".to_owned(), "INVALID_FIELD")]);
        assert_eq!(pause(6, &"x".repeat(1_025)).unwrap().1.note.len(), 1_024, "cut and marked");
    }
}

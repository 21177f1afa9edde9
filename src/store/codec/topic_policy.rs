//! Stored form of a topic's policy.

use std::time::Duration;

use crate::domain::{
    GroupName, OverflowPolicy, PolicySource, RetryOverrides, Time, TopicPattern, TopicPause,
    TopicPolicy, TopicSettings,
};

use super::newer::{message_in, newer_fields, put_fields};
use super::spec::{retry_from, retry_to_stored};
use super::{Message as _, StoredDecodeError, decode, micros, stored};

/// Numbers of the messages in a policy, and in its settings, that may have newer fields.
const SETTINGS: u32 = 1;
const PAUSE: u32 = 3;
const RETRY: u32 = 2;

/// Encodes a policy, without its name.
pub(super) fn encode_topic_policy(policy: &TopicPolicy) -> Vec<u8> {
    let pause = |pause: &TopicPause| stored::TopicPause {
        until_us: pause.until.map(|until| until.0),
        note: pause.note.clone(),
    };
    let known = stored::TopicPolicy {
        settings: policy.settings.as_ref().map(settings_to_stored),
        file_revision: match policy.source {
            PolicySource::Rpc => None,
            PolicySource::File { revision } => Some(revision),
        },
        pause: policy.pause.as_ref().map(pause),
        create_us: policy.create_time.0,
        paused_groups: policy.paused_groups.iter().map(group_to_stored).collect(),
    };
    let mut blob = known.encode_to_vec();
    blob.extend_from_slice(&policy.newer);
    policy.settings.iter().for_each(|of| put_fields(SETTINGS, &of.newer, &mut blob));
    policy.pause.iter().for_each(|of| put_fields(PAUSE, &of.newer, &mut blob));
    blob
}

/// Decodes a policy.
pub(super) fn decode_topic_policy(
    name: TopicPattern,
    blob: &[u8],
) -> Result<TopicPolicy, StoredDecodeError> {
    let stored = decode::<stored::TopicPolicy>("policy", blob)?;
    let source = match stored.file_revision {
        None => PolicySource::Rpc,
        Some(revision) => PolicySource::File { revision },
    };
    Ok(TopicPolicy {
        name,
        settings: stored.settings.map(|of| settings_from(of, &message_in(SETTINGS, blob))),
        source,
        pause: stored.pause.map(|of| TopicPause {
            until: of.until_us.map(Time),
            note: of.note,
            newer: newer_fields::<stored::TopicPause>(&message_in(PAUSE, blob)),
        }),
        paused_groups: stored
            .paused_groups
            .into_iter()
            .map(|(group, note)| (GroupName::stored(&group), note))
            .collect(),
        create_time: Time(stored.create_us),
        newer: newer_fields::<stored::TopicPolicy>(blob),
    })
}

fn group_to_stored((group, note): (&Option<GroupName>, &String)) -> (String, String) {
    (GroupName::text(group.as_ref()).to_owned(), note.clone())
}

fn settings_to_stored(settings: &TopicSettings) -> stored::TopicSettings {
    let TopicSettings { description, retry, lease, retention, dead_retention, .. } = settings;
    stored::TopicSettings {
        description: description.clone(),
        retry: (*retry != RetryOverrides::default()).then(|| retry_to_stored(retry)),
        lease_us: lease.map(micros),
        retention_us: retention.map(micros),
        dead_retention_us: dead_retention.map(micros),
        priority: settings.priority.map(u32::from),
        max_payload_bytes: settings.max_payload_bytes,
        max_jobs: settings.max_jobs,
        max_stored_bytes: settings.max_stored_bytes,
        drops_oldest: settings.on_full == OverflowPolicy::DropOldest,
        priority_ageing_us: settings.priority_ageing.map(micros),
        group_weights: settings
            .group_weights
            .iter()
            .map(|(group, weight)| (group.as_str().to_owned(), u32::from(*weight)))
            .collect(),
    }
}

fn settings_from(stored: stored::TopicSettings, blob: &[u8]) -> TopicSettings {
    let mut newer = newer_fields::<stored::TopicSettings>(blob);
    let retry = newer_fields::<stored::Retry>(&message_in(RETRY, blob));
    put_fields(RETRY, &retry, &mut newer);
    let duration = |micros: Option<u64>| micros.map(Duration::from_micros);
    TopicSettings {
        description: stored.description,
        retry: stored.retry.map(retry_from).unwrap_or_default(),
        lease: duration(stored.lease_us),
        retention: duration(stored.retention_us),
        dead_retention: duration(stored.dead_retention_us),
        priority: stored.priority.and_then(|priority| u8::try_from(priority).ok()),
        max_payload_bytes: stored.max_payload_bytes,
        max_jobs: stored.max_jobs,
        max_stored_bytes: stored.max_stored_bytes,
        on_full: match stored.drops_oldest {
            true => OverflowPolicy::DropOldest,
            false => OverflowPolicy::Reject,
        },
        priority_ageing: duration(stored.priority_ageing_us),
        group_weights: stored
            .group_weights
            .into_iter()
            .filter_map(|(group, weight)| GroupName::stored(&group).zip(u8::try_from(weight).ok()))
            .collect(),
        newer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_comes_back_as_it_was_stored() {
        let name = TopicPattern::parse("orders").unwrap();
        let empty = TopicPolicy::new(name.clone(), Time(7));
        let settings = TopicSettings {
            description: "orders of customers".into(),
            retry: RetryOverrides { max_attempts: Some(3), ..RetryOverrides::default() },
            lease: Some(Duration::from_secs(60)),
            retention: Some(Duration::ZERO),
            dead_retention: Some(Duration::from_secs(3_600)),
            priority: Some(9),
            priority_ageing: Some(Duration::from_secs(600)),
            max_payload_bytes: Some(1_000),
            max_jobs: Some(1 << 40),
            max_stored_bytes: Some(1 << 41),
            on_full: OverflowPolicy::DropOldest,
            group_weights: [(GroupName::stored("a").unwrap(), 7)].into(),
            newer: Vec::new(),
        };
        let full = TopicPolicy {
            settings: Some(settings),
            source: PolicySource::File { revision: 12 },
            pause: Some(TopicPause {
                until: Some(Time(9)),
                note: "migration".into(),
                newer: Vec::new(),
            }),
            paused_groups: [(None, String::new()), (GroupName::stored("b"), "why".into())].into(),
            ..empty.clone()
        };
        for policy in [empty, full] {
            let blob = encode_topic_policy(&policy);
            assert_eq!(decode_topic_policy(name.clone(), &blob).unwrap(), policy);
        }
        assert!(decode_topic_policy(name, &[0xff]).is_err());
    }

    #[test]
    fn fields_of_a_newer_version_stay() {
        // Field 1000, a number.
        const NEWER: [u8; 3] = [0xc0, 0x3e, 77];
        let name = TopicPattern::parse("orders").unwrap();
        let retry = RetryOverrides { max_attempts: Some(3), ..RetryOverrides::default() };
        let settings = TopicSettings { retry, priority: Some(9), ..TopicSettings::default() };
        let old = TopicPolicy {
            settings: Some(settings),
            pause: Some(TopicPause { until: Some(Time(9)), ..TopicPause::default() }),
            ..TopicPolicy::new(name.clone(), Time(7))
        };
        let mut in_retry = Vec::new();
        put_fields(RETRY, &NEWER.to_vec(), &mut in_retry);
        let mut blob = encode_topic_policy(&old);
        blob.extend_from_slice(&NEWER);
        for (number, fields) in
            [(PAUSE, NEWER.to_vec()), (SETTINGS, NEWER.to_vec()), (SETTINGS, in_retry.clone())]
        {
            put_fields(number, &fields, &mut blob);
        }

        let read = decode_topic_policy(name.clone(), &blob).unwrap();
        let (settings, pause) = (read.settings.clone().unwrap(), read.pause.clone().unwrap());
        assert_eq!((&read.newer[..], &pause.newer[..]), (&NEWER[..], &NEWER[..]));
        assert_eq!(settings.newer, [&NEWER[..], &in_retry].concat());
        let known = TopicPolicy {
            settings: Some(TopicSettings { newer: Vec::new(), ..settings }),
            pause: Some(TopicPause { newer: Vec::new(), ..pause }),
            newer: Vec::new(),
            ..read.clone()
        };
        assert_eq!(known, old);
        let again = encode_topic_policy(&read);
        assert_eq!(decode_topic_policy(name.clone(), &again).unwrap(), read);
        // What they belong to takes them along.
        let reset = TopicPolicy { settings: None, pause: None, ..read };
        assert_eq!(decode_topic_policy(name, &encode_topic_policy(&reset)).unwrap(), reset);
    }
}

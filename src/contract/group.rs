//! Groups of a topic as operators see them.

use crate::domain::{GroupName, TopicName, limit};
use crate::pb;
use crate::store::ShardGroupStats;

use super::list::{encode, hash, size, token};
use super::number::to_int64;
use super::time::to_duration;
use super::{Checks, FieldPath, InvalidRequest, names};

/// Request for a page of groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupsPage {
    /// Topic of the groups.
    pub(crate) topic: TopicName,
    /// Text of the last group of the page before; empty: the jobs without a group.
    pub(crate) after: Option<String>,
    /// Maximum number of groups.
    pub(crate) limit: usize,
}

/// Reads a ListGroups request.
pub(crate) fn list_groups(request: &pb::ListGroupsRequest) -> Result<GroupsPage, InvalidRequest> {
    let mut checks = Checks::default();
    let (default, max) = (limit::LIST_GROUPS_PAGE_DEFAULT, limit::LIST_GROUPS_PAGE_MAX);
    let pb::ListGroupsRequest { topic: name, page_size, page_token } = request;
    let topic = names::topic(&mut checks, FieldPath::ROOT.field("topic"), name);
    let limit = size(&mut checks, *page_size, default, max);
    let after = token(&mut checks, page_token, query(name), |place| {
        let group = std::str::from_utf8(place).ok()?;
        (group.is_empty() || GroupName::try_new(group).is_ok()).then(|| group.to_owned())
    });
    checks.finish(topic.map(|topic| GroupsPage { topic, after, limit }))
}

/// Returns the token of the page after the group `last`.
pub(crate) fn to_groups_token(topic: &TopicName, last: &ShardGroupStats) -> String {
    encode(query(topic.as_str()), GroupName::text(last.group.as_ref()).as_bytes())
}

fn query(topic: &str) -> u64 {
    let query = pb::ListGroupsRequest { topic: topic.to_owned(), ..Default::default() };
    hash("groups", &query)
}

/// Converts a row of a list of groups.
pub(crate) fn to_group(stats: ShardGroupStats) -> pb::GroupSummary {
    pb::GroupSummary {
        group: GroupName::text(stats.group.as_ref()).to_owned(),
        ready: to_int64(stats.ready),
        scheduled: to_int64(stats.scheduled),
        running: to_int64(stats.running),
        oldest_ready_age: stats.oldest_ready.map(to_duration),
        paused: stats.paused,
        weight: i32::from(stats.weight),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    fn request(page_token: String) -> pb::ListGroupsRequest {
        pb::ListGroupsRequest { topic: "t".into(), page_size: 0, page_token }
    }

    fn stats(name: &str) -> ShardGroupStats {
        ShardGroupStats {
            group: GroupName::stored(name),
            ready: 1,
            scheduled: 2,
            running: 3,
            oldest_ready: None,
            weight: 4,
            paused: true,
        }
    }

    #[test]
    fn a_page_begins_after_the_last_group_of_the_one_before() {
        let first = list_groups(&request(String::new())).unwrap();
        assert_eq!((first.after, first.limit), (None, 100));
        for name in ["", "g", "tenant-7@example.com"] {
            let token = to_groups_token(&TopicName::stored("t"), &stats(name));
            assert_eq!(list_groups(&request(token.clone())).unwrap().after.as_deref(), Some(name));
            let other = pb::ListGroupsRequest { topic: "u".into(), ..request(token) };
            assert_eq!(refused(list_groups(&other)), [("page_token".to_owned(), "INVALID_FIELD")]);
        }
        let nameless = pb::ListGroupsRequest { topic: String::new(), ..request(String::new()) };
        assert_eq!(refused(list_groups(&nameless)), [("topic".to_owned(), "INVALID_FIELD")]);
    }

    #[test]
    fn jobs_without_a_group_have_the_empty_one() {
        let row = to_group(stats(""));
        assert_eq!((&*row.group, row.ready, row.scheduled, row.running), ("", 1, 2, 3));
        assert_eq!((row.weight, row.paused, row.oldest_ready_age), (4, true, None));
    }
}

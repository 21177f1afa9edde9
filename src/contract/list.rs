//! Lists: page sizes, and page tokens that are accepted only with the query that returned them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use xxhash_rust::xxh3::xxh3_64;

use crate::domain::{ShardName, Time, TopicName, TopicPattern, limit};
use crate::pb;
use crate::scheduler::{ListJobs, ListPosition, ShardPosition};
use crate::store::ListCursor;

use super::enums::{self, ReadView};
use super::{Checks, FieldPath, InvalidRequest, names};

/// Request for a page of topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TopicsPage {
    /// Prefix of the topic names.
    pub(crate) prefix: String,
    /// Place where the page before ended; `None`: there was none.
    pub(crate) place: Option<TopicsPlace>,
    /// Maximum number of topics.
    pub(crate) limit: usize,
}

/// Place in the order of all topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TopicsPlace {
    /// Behind this topic.
    After(TopicName),
    /// Before the topics that this pattern of the caller's rights begins with.
    Before(String),
}

/// First byte of a place before a pattern; no topic begins with it.
const BEFORE: u8 = b'<';

/// Reads a ListJobs request: the page and the view.
pub(crate) fn list_jobs(
    request: &pb::ListJobsRequest,
) -> Result<(ListJobs, ReadView), InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    let c = &mut checks;
    let pb::ListJobsRequest { topic, state, filter, page_size, page_token, view } = request;
    let topic = names::topic(c, root.field("topic"), topic);
    let state = enums::job_state(c, root.field("state"), *state);
    no_filter(c, filter);
    let view = enums::view(c, root.field("view"), *view, ReadView::Basic);
    let (default, max) = (limit::LIST_JOBS_PAGE_DEFAULT, limit::LIST_JOBS_PAGE_MAX);
    let limit = size(c, *page_size, default, max);
    let after = token(c, page_token, jobs_query(request), places);
    let after = after.unwrap_or_default();
    let list = topic.zip(state).zip(view).map(|((topic, state), view)| {
        (ListJobs { topic, state, full: view == ReadView::Full, limit, after }, view)
    });
    checks.finish(list)
}

/// Returns the token of the page that begins at `places`: per shard its name and its position.
pub(crate) fn to_jobs_token(query: u64, places: &ListPosition) -> String {
    let mut bytes = Vec::new();
    for (shard, place) in &places.0 {
        let cursor = match place {
            // Equivalent to a shard that is not in the token.
            ShardPosition::Start => continue,
            ShardPosition::After(cursor) => Some(cursor),
            ShardPosition::End => None,
        };
        bytes.push(u8::try_from(shard.as_str().len()).unwrap_or(u8::MAX));
        bytes.extend_from_slice(shard.as_str().as_bytes());
        bytes.push(u8::from(cursor.is_some()));
        if let Some(cursor) = cursor {
            bytes.extend_from_slice(&cursor.due.0.to_be_bytes());
            bytes.extend_from_slice(&cursor.sequence.to_be_bytes());
        }
    }
    encode(query, &bytes)
}

/// Returns the hash of the fields that must not change from page to page of jobs.
pub(crate) fn jobs_query(request: &pb::ListJobsRequest) -> u64 {
    let query = pb::ListJobsRequest { page_size: 0, page_token: String::new(), ..request.clone() };
    hash("jobs", &query)
}

/// Reads a ListTopics request.
pub(crate) fn list_topics(request: &pb::ListTopicsRequest) -> Result<TopicsPage, InvalidRequest> {
    let mut checks = Checks::default();
    let (default, max) = (limit::LIST_TOPICS_PAGE_DEFAULT, limit::LIST_TOPICS_PAGE_MAX);
    let pb::ListTopicsRequest { prefix, page_size, page_token } = request;
    let limit = size(&mut checks, *page_size, default, max);
    let query = topics_query(prefix);
    let place = token(&mut checks, page_token, query, |place| {
        let text = std::str::from_utf8(place.strip_prefix(&[BEFORE]).unwrap_or(place)).ok()?;
        let topic = TopicName::try_new(text).ok()?;
        Some(match place.first() {
            Some(&BEFORE) => TopicsPlace::Before(text.to_owned()),
            _ => TopicsPlace::After(topic),
        })
    });
    checks.finish(Some(TopicsPage { prefix: prefix.clone(), place, limit }))
}

/// Returns the token of the page that begins at this place.
pub(crate) fn to_topics_token(prefix: &str, place: &TopicsPlace) -> String {
    let place = match place {
        TopicsPlace::After(topic) => topic.as_str().as_bytes().to_vec(),
        TopicsPlace::Before(text) => [&[BEFORE], text.as_bytes()].concat(),
    };
    encode(topics_query(prefix), &place)
}

// === impl TopicsPlace ===

impl TopicsPlace {
    /// Returns whether no topic of this pattern follows.
    pub(crate) fn is_behind(&self, pattern: &TopicPattern) -> bool {
        match (self, pattern) {
            (TopicsPlace::After(topic), TopicPattern::Exact(name)) => name <= topic,
            (TopicsPlace::After(topic), TopicPattern::Prefix(prefix)) => {
                prefix.as_str() <= topic.as_str() && !topic.as_str().starts_with(prefix)
            }
            (TopicsPlace::Before(text), pattern) => pattern.text() < text.as_str(),
        }
    }

    /// Returns the topic behind which those with this prefix are read; `None`: all are.
    pub(crate) fn after(&self, prefix: &str) -> Option<&TopicName> {
        match self {
            TopicsPlace::After(topic) => {
                Some(topic).filter(|topic| topic.as_str().starts_with(prefix))
            }
            TopicsPlace::Before(_) => None,
        }
    }
}

/// Refuses a filter expression: this server cannot evaluate any.
pub(crate) fn no_filter(checks: &mut Checks, filter: &str) {
    if !filter.is_empty() {
        checks.unsupported(FieldPath::ROOT.field("filter"), "filters");
    }
}

fn topics_query(prefix: &str) -> u64 {
    let query = pb::ListTopicsRequest { prefix: prefix.to_owned(), ..Default::default() };
    hash("topics", &query)
}

pub(super) fn hash(kind: &str, query: &impl prost::Message) -> u64 {
    let mut bytes = kind.as_bytes().to_vec();
    bytes.push(0);
    bytes.extend(query.encode_to_vec());
    xxh3_64(&bytes)
}

pub(super) fn size(checks: &mut Checks, given: i32, default: u32, max: u32) -> usize {
    let size = u32::try_from(given).unwrap_or_else(|_| {
        checks.invalid(FieldPath::ROOT.field("page_size"), format!("must be 0 to {max}"));
        0
    });
    let size = if size == 0 { default } else { size.min(max) };
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Encodes a token: the hash of its query and the place where its page ended. A client that changes its query
/// receives an error instead of a wrong page.
pub(super) fn encode(query: u64, place: &[u8]) -> String {
    let mut bytes = query.to_be_bytes().to_vec();
    bytes.extend_from_slice(place);
    URL_SAFE_NO_PAD.encode(bytes)
}

pub(super) fn token<T>(
    checks: &mut Checks,
    given: &str,
    query: u64,
    place: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    if given.is_empty() {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(given).unwrap_or_default();
    let found = bytes.strip_prefix(&query.to_be_bytes()).and_then(place);
    if found.is_none() {
        let text = "must be the next_page_token of this very query; leave it out to begin again";
        checks.invalid(FieldPath::ROOT.field("page_token"), text);
    }
    found
}

fn places(mut bytes: &[u8]) -> Option<ListPosition> {
    let mut places = ListPosition::default();
    while let Some((&len, rest)) = bytes.split_first() {
        let (name, rest) = rest.split_at_checked(usize::from(len))?;
        let name = ShardName::try_new(std::str::from_utf8(name).ok()?).ok()?;
        let (&goes_on, rest) = rest.split_first()?;
        let (place, rest) = match goes_on {
            0 => (ShardPosition::End, rest),
            1 => cursor(rest).map(|(cursor, rest)| (ShardPosition::After(cursor), rest))?,
            _ => return None,
        };
        places.0.insert(name, place);
        bytes = rest;
    }
    (!places.0.is_empty()).then_some(places)
}

fn cursor(bytes: &[u8]) -> Option<(ListCursor, &[u8])> {
    let (due, rest) = bytes.split_first_chunk::<8>()?;
    let (sequence, rest) = rest.split_first_chunk::<8>()?;
    let (due, sequence) = (Time(i64::from_be_bytes(*due)), i64::from_be_bytes(*sequence));
    Some((ListCursor { due, sequence }, rest))
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    fn request() -> pb::ListJobsRequest {
        pb::ListJobsRequest {
            topic: "t".into(),
            state: pb::JobState::Dead.into(),
            ..Default::default()
        }
    }

    #[test]
    fn every_field_of_a_list_has_its_rule() {
        type SetListField = fn(&mut pb::ListJobsRequest);
        let cases: [(SetListField, &[&str]); 8] = [
            (|_| (), &[]),
            (|r| r.topic.clear(), &["topic INVALID_FIELD"]),
            (|r| r.state = 0, &["state INVALID_FIELD"]),
            (|r| r.state = 99, &["state INVALID_FIELD"]),
            (|r| r.view = 3, &["view INVALID_FIELD"]),
            (|r| r.filter = "true".into(), &["filter FEATURE_UNSUPPORTED"]),
            (|r| r.page_size = -1, &["page_size INVALID_FIELD"]),
            (|r| r.page_token = "x".into(), &["page_token INVALID_FIELD"]),
        ];
        for (set, expected) in cases {
            let mut request = request();
            set(&mut request);
            let found = refused(list_jobs(&request));
            let found: Vec<_> = found.iter().map(|(f, r)| format!("{f} {r}")).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn sizes_have_a_default_and_a_cap() {
        for (given, expected) in [(0, 50), (7, 7), (500, 500), (501, 500), (i32::MAX, 500)] {
            let request = pb::ListJobsRequest { page_size: given, ..request() };
            assert_eq!(list_jobs(&request).unwrap().0.limit, expected);
        }
        assert_eq!(list_topics(&pb::ListTopicsRequest::default()).unwrap().limit, 100);
    }

    #[test]
    fn a_token_of_jobs_leads_on_in_its_own_query_only() {
        type SetOtherField = fn(&mut pb::ListJobsRequest);
        let cursor = ListCursor { due: Time(-7), sequence: i64::MAX };
        let place = |name, place| (ShardName::try_new(name).unwrap(), place);
        let mut places = ListPosition(
            [place("s0", ShardPosition::After(cursor)), place("s1", ShardPosition::End)].into(),
        );
        let after = places.clone();
        places.0.extend([place("s2", ShardPosition::Start)]);
        let page_token = to_jobs_token(jobs_query(&request()), &places);
        let next = pb::ListJobsRequest { page_token, ..request() };
        assert_eq!(list_jobs(&next).unwrap().0.after, after);
        let other_size = pb::ListJobsRequest { page_size: 3, ..next.clone() };
        assert_eq!(list_jobs(&other_size).unwrap().0.after, after);
        let others: [SetOtherField; 4] = [
            (|r| r.topic = "u".into()),
            (|r| r.state = pb::JobState::Ready.into()),
            (|r| r.view = pb::JobView::Full.into()),
            (|r| r.page_token.truncate(20)),
        ];
        for set in others {
            let mut other = next.clone();
            set(&mut other);
            assert_eq!(refused(list_jobs(&other)), [("page_token".to_owned(), "INVALID_FIELD")]);
        }
    }

    #[test]
    fn a_token_of_topics_leads_on_in_its_own_query_only() {
        let last = TopicsPlace::After(TopicName::stored("billing.eu"));
        let page_token = to_topics_token("b", &last);
        let before = TopicsPlace::Before("billing.".to_owned());
        let before_token = to_topics_token("b", &before);
        let page = |prefix: &str, page_token: &str| {
            list_topics(&pb::ListTopicsRequest {
                prefix: prefix.into(),
                page_token: page_token.into(),
                ..Default::default()
            })
        };
        assert_eq!(page("b", &page_token).unwrap().place, Some(last));
        assert_eq!(page("b", &before_token).unwrap().place, Some(before));
        assert_eq!(page("b", "").unwrap().place, None);
        let places = ListPosition([(ShardName::try_new("s0").unwrap(), ShardPosition::End)].into());
        let jobs_token = to_jobs_token(jobs_query(&request()), &places);
        for (prefix, token) in [("a", &*page_token), ("b", &*jobs_token), ("b", "§")] {
            let found = refused(page(prefix, token));
            assert_eq!(found, [("page_token".to_owned(), "INVALID_FIELD")], "{prefix} {token}");
        }
    }
}

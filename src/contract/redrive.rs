//! RedriveJobs.

use crate::domain::State;
use crate::pb;
use crate::scheduler::RedriveJobs;

use super::time::{self, TTL};
use super::{Checks, FieldPath, InvalidRequest, enums, list, names};

/// Minimum rate of a redrive in jobs per second: one a day. A slower one would set due times beyond all limits.
const RATE_MIN: f64 = 1.0 / 86_400.0;

/// Reads a RedriveJobs request.
pub(crate) fn redrive_jobs(
    request: &pb::RedriveJobsRequest,
) -> Result<RedriveJobs, InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    let c = &mut checks;
    let pb::RedriveJobsRequest {
        topic,
        ids,
        filter,
        target_topic,
        max_rate,
        validate_only,
        states,
        ttl,
        all,
    } = request;
    let topic = names::topic(c, root.field("topic"), topic);
    match (ids.is_empty(), all, filter.is_empty()) {
        (true, false, true) => {
            c.invalid(root.field("ids"), "must have the ids of jobs; for all jobs set all: true");
        }
        (false, true, _) => c.invalid(root.field("all"), "must not be set together with ids"),
        _ => {}
    }
    let ids = ids.iter().enumerate();
    let ids = ids.filter_map(|(index, id)| names::id(c, root.item("ids", index), id)).collect();
    list::no_filter(c, filter);
    let target = Some(target_topic.as_str()).filter(|name| !name.is_empty());
    let target = target.and_then(|name| names::topic(c, root.field("target_topic"), name));
    let rate = rate(c, *max_rate);
    let states = self::states(c, states);
    let ttl = time::duration(c, root.field("ttl"), ttl.as_ref(), &TTL);
    let dry_run = *validate_only;
    checks.finish(topic.map(|topic| RedriveJobs { topic, ids, states, target, rate, ttl, dry_run }))
}

/// Reads the states of the jobs to put back, each once.
fn states(checks: &mut Checks, given: &[i32]) -> Vec<State> {
    if given.is_empty() {
        return vec![State::Dead];
    }
    let mut states = Vec::with_capacity(given.len());
    for (index, &state) in given.iter().enumerate() {
        let root = FieldPath::ROOT;
        let path = root.item("states", index);
        match enums::job_state(checks, path, state) {
            Some(state) if !state.is_terminal() => {
                checks.invalid(path, "must be DEAD, SUCCEEDED, CANCELLED or EXPIRED");
            }
            Some(state) if !states.contains(&state) => states.push(state),
            Some(_) | None => {}
        }
    }
    states
}

fn rate(checks: &mut Checks, given: f64) -> Option<f64> {
    if given == 0.0 {
        return None;
    }
    if !given.is_finite() || given < RATE_MIN {
        let text =
            "must be a finite number of jobs per second, one a day or more, or 0 for all at once";
        checks.invalid(FieldPath::ROOT.field("max_rate"), text);
    }
    Some(given)
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    fn fields<T>(result: Result<T, InvalidRequest>) -> Vec<String> {
        refused(result).into_iter().map(|(field, reason)| format!("{field} {reason}")).collect()
    }

    #[test]
    fn redrives_are_checked() {
        type SetRedriveField = fn(&mut pb::RedriveJobsRequest);
        let cases: [(SetRedriveField, &[&str]); 18] = [
            (|_| (), &[]),
            (|r| r.all = false, &["ids INVALID_FIELD"]),
            (|r| (r.all, r.ids) = (false, vec!["a".into()]), &[]),
            (|r| r.ids = vec!["a".into()], &["all INVALID_FIELD"]),
            (|r| (r.all, r.filter) = (false, "true".into()), &["filter FEATURE_UNSUPPORTED"]),
            (|r| r.topic.clear(), &["topic INVALID_FIELD"]),
            (
                |r| (r.all, r.ids) = (false, vec!["a".into(), "b c".into()]),
                &["ids[1] INVALID_FIELD"],
            ),
            (|r| r.filter = "true".into(), &["filter FEATURE_UNSUPPORTED"]),
            (|r| r.target_topic = "a b".into(), &["target_topic INVALID_FIELD"]),
            (|r| r.max_rate = 0.5, &[]),
            (|r| r.max_rate = -1.0, &["max_rate INVALID_FIELD"]),
            (|r| r.max_rate = 1e-300, &["max_rate INVALID_FIELD"]),
            (|r| r.max_rate = f64::NAN, &["max_rate INVALID_FIELD"]),
            (|r| r.max_rate = f64::INFINITY, &["max_rate INVALID_FIELD"]),
            (|r| r.states = vec![5, 6, 7, 8, 6], &[]),
            (
                |r| r.states = vec![6, 0, 1, 2, 3, 4, 9],
                &[
                    "states[1] INVALID_FIELD",
                    "states[2] INVALID_FIELD",
                    "states[3] INVALID_FIELD",
                    "states[4] INVALID_FIELD",
                    "states[5] INVALID_FIELD",
                    "states[6] INVALID_FIELD",
                ],
            ),
            (|r| r.ttl = Some(prost_types::Duration { seconds: 60, nanos: 0 }), &[]),
            (|r| r.ttl = Some(prost_types::Duration::default()), &["ttl INVALID_FIELD"]),
        ];
        for (set, expected) in cases {
            let mut request =
                pb::RedriveJobsRequest { topic: "t".into(), all: true, ..Default::default() };
            set(&mut request);
            assert_eq!(fields(redrive_jobs(&request)), expected, "{request:?}");
        }
    }

    #[test]
    fn a_redrive_without_target_or_rate_has_none() {
        let request = pb::RedriveJobsRequest { topic: "t".into(), all: true, ..Default::default() };
        let redrive = redrive_jobs(&request).unwrap();
        assert_eq!((redrive.target, redrive.rate, redrive.dry_run), (None, None, false));
        assert!(redrive.ids.is_empty());
        assert_eq!((redrive.states, redrive.ttl), (vec![State::Dead], None), "only dead letters");
    }
}

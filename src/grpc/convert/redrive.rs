//! RedriveJobs and Reschedule.

use crate::domain::{JobKey, Time, When};
use crate::pb;
use crate::scheduler::RedriveJobs;

use super::{Checks, Invalid, Path, names, page, schedule, spec};

/// Slowest redrive in jobs per second: one a day. Slower ones would be due beyond all limits.
const RATE_MIN: f64 = 1.0 / 86_400.0;

/// What a reschedule asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::grpc) struct Move {
    /// The job.
    pub(in crate::grpc) key: JobKey,
    /// Its new due time; absent keeps it.
    pub(in crate::grpc) due: Option<When>,
    /// Its new priority; absent keeps it.
    pub(in crate::grpc) priority: Option<u8>,
}

/// Jobs to be put back.
pub(in crate::grpc) fn redrive(request: &pb::RedriveJobsRequest) -> Result<RedriveJobs, Invalid> {
    let (mut checks, root) = (Checks::default(), Path::ROOT);
    let c = &mut checks;
    let topic = names::topic(c, root.field("topic"), &request.topic);
    let ids = request.ids.iter().enumerate();
    let ids = ids.filter_map(|(index, id)| names::id(c, root.item("ids", index), id)).collect();
    page::no_filter(c, &request.filter);
    let target = Some(request.target_topic.as_str()).filter(|name| !name.is_empty());
    let target = target.and_then(|name| names::topic(c, root.field("target_topic"), name));
    let rate = rate(c, request.max_rate);
    let dry_run = request.validate_only;
    checks.finish(topic.map(|topic| RedriveJobs { topic, ids, target, rate, dry_run }))
}

fn rate(checks: &mut Checks, given: f64) -> Option<f64> {
    if given == 0.0 {
        return None;
    }
    if !given.is_finite() || given < RATE_MIN {
        let text =
            "must be a finite number of jobs per second, one a day or more, or 0 for all at once";
        checks.invalid(Path::ROOT.field("max_rate"), text);
    }
    Some(given)
}

/// A job to be moved.
pub(in crate::grpc) fn reschedule(
    request: pb::RescheduleRequest,
    now: Time,
) -> Result<Move, Invalid> {
    let (mut checks, root) = (Checks::default(), Path::ROOT);
    let key = names::key_in(&mut checks, &request.topic, &request.id);
    let due = schedule::due(&mut checks, root, request.schedule.map(Into::into), now);
    let priority = spec::priority(&mut checks, root.field("priority"), request.priority);
    checks.finish(key.map(|key| Move { key, due, priority }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    fn fields<T>(result: Result<T, Invalid>) -> Vec<String> {
        refused(result).into_iter().map(|(field, reason)| format!("{field} {reason}")).collect()
    }

    #[test]
    fn redrives_are_checked() {
        type Set = fn(&mut pb::RedriveJobsRequest);
        let cases: [(Set, &[&str]); 10] = [
            (|_| (), &[]),
            (|r| r.topic.clear(), &["topic INVALID_FIELD"]),
            (|r| r.ids = vec!["a".into(), "b c".into()], &["ids[1] INVALID_FIELD"]),
            (|r| r.filter = "true".into(), &["filter FEATURE_UNSUPPORTED"]),
            (|r| r.target_topic = "a b".into(), &["target_topic INVALID_FIELD"]),
            (|r| r.max_rate = 0.5, &[]),
            (|r| r.max_rate = -1.0, &["max_rate INVALID_FIELD"]),
            (|r| r.max_rate = 1e-300, &["max_rate INVALID_FIELD"]),
            (|r| r.max_rate = f64::NAN, &["max_rate INVALID_FIELD"]),
            (|r| r.max_rate = f64::INFINITY, &["max_rate INVALID_FIELD"]),
        ];
        for (set, expected) in cases {
            let mut request = pb::RedriveJobsRequest { topic: "t".into(), ..Default::default() };
            set(&mut request);
            assert_eq!(fields(redrive(&request)), expected, "{request:?}");
        }
    }

    #[test]
    fn a_redrive_without_target_or_rate_has_none() {
        let request = pb::RedriveJobsRequest { topic: "t".into(), ..Default::default() };
        let redrive = redrive(&request).unwrap();
        assert_eq!((redrive.target, redrive.rate, redrive.dry_run), (None, None, false));
        assert!(redrive.ids.is_empty());
    }

    #[test]
    fn reschedules_are_checked() {
        use pb::reschedule_request::Schedule::Delay;
        type Set = fn(&mut pb::RescheduleRequest);
        let cases: [(Set, &[&str]); 5] = [
            (|_| (), &[]),
            (|r| r.schedule = Some(Delay(prost_types::Duration::default())), &[]),
            (
                |r| r.schedule = Some(Delay(prost_types::Duration { seconds: -1, nanos: 0 })),
                &["delay INVALID_FIELD"],
            ),
            (|r| r.priority = Some(10), &["priority INVALID_FIELD"]),
            (
                |r| {
                    r.topic.clear();
                    r.id.clear();
                },
                &["topic INVALID_FIELD", "id INVALID_FIELD"],
            ),
        ];
        for (set, expected) in cases {
            let mut request =
                pb::RescheduleRequest { topic: "t".into(), id: "i".into(), ..Default::default() };
            set(&mut request);
            assert_eq!(fields(reschedule(request, Time(0))), expected);
        }
    }
}

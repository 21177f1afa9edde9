//! Reschedule.

use crate::domain::{JobKey, Time, When};
use crate::pb;

use super::{Checks, FieldPath, InvalidRequest, names, schedule, spec};

/// Parameters of a reschedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RescheduleCall {
    /// Job to move.
    pub(crate) key: JobKey,
    /// New due time; absent keeps the due time.
    pub(crate) due: Option<When>,
    /// New priority; absent keeps the priority.
    pub(crate) priority: Option<u8>,
}

/// Reads a Reschedule request.
pub(crate) fn reschedule(
    request: pb::RescheduleRequest,
    now: Time,
) -> Result<RescheduleCall, InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    let pb::RescheduleRequest { topic, id, priority, schedule } = request;
    let key = names::key(&mut checks, &topic, &id);
    let due = schedule::due(&mut checks, root, schedule.map(Into::into), now);
    let priority = spec::priority(&mut checks, root.field("priority"), priority);
    checks.finish(key.map(|key| RescheduleCall { key, due, priority }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;

    #[test]
    fn reschedules_are_checked() {
        use pb::reschedule_request::Schedule::Delay;
        type SetRescheduleField = fn(&mut pb::RescheduleRequest);
        let cases: [(SetRescheduleField, &[&str]); 5] = [
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
            let found = refused(reschedule(request, Time(0)));
            let found: Vec<_> = found.iter().map(|(f, r)| format!("{f} {r}")).collect();
            assert_eq!(found, expected);
        }
    }
}

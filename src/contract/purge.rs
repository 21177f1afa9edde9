//! PurgeTopic.

use crate::domain::State;
use crate::pb;
use crate::scheduler::PurgeTopic;

use super::{Checks, FieldPath, InvalidRequest, enums, names};

/// Reads a PurgeTopic request.
pub(crate) fn purge_topic(request: &pb::PurgeTopicRequest) -> Result<PurgeTopic, InvalidRequest> {
    let mut checks = Checks::default();
    let pb::PurgeTopicRequest { name, states, validate_only, group } = request;
    let topic = names::topic(&mut checks, FieldPath::ROOT.field("name"), name);
    let states = self::states(&mut checks, states);
    let dry_run = *validate_only;
    let at = FieldPath::ROOT.field("group");
    let group = group.as_ref().map(|group| names::group(&mut checks, at, group));
    checks.finish(topic.map(|topic| PurgeTopic { topic, states, group, dry_run }))
}

/// Reads the states of the jobs to remove. Nothing is removed by a mistake: there is no default, and a state that is
/// named twice may be meant for another one.
fn states(checks: &mut Checks, given: &[i32]) -> Vec<State> {
    let root = FieldPath::ROOT;
    if given.is_empty() {
        let text = "must name the states of the jobs to remove, for example JOB_STATE_DEAD";
        checks.invalid(root.field("states"), text);
    }
    let mut states = Vec::with_capacity(State::ALL.len());
    for (index, &state) in given.iter().enumerate() {
        let path = root.item("states", index);
        match enums::job_state(checks, path, state) {
            Some(state) if states.contains(&state) => {
                checks.invalid(path, format!("must name {} once", state.name()));
            }
            Some(state) => states.push(state),
            None => {}
        }
    }
    states
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;
    use crate::domain::TopicName;

    fn fields(name: &str, states: &[i32]) -> Vec<String> {
        let (name, states) = (name.to_owned(), states.to_vec());
        let request = pb::PurgeTopicRequest { name, states, validate_only: false, group: None };
        let violations = refused(purge_topic(&request));
        violations.into_iter().map(|(field, reason)| format!("{field} {reason}")).collect()
    }

    #[test]
    fn purges_are_checked() {
        let states = State::ALL.map(|state| enums::to_job_state(state).into()).to_vec();
        let request = pb::PurgeTopicRequest {
            name: "t".to_owned(),
            states,
            validate_only: true,
            group: Some("g".to_owned()),
        };
        let purge = purge_topic(&request).unwrap();
        assert_eq!((purge.topic, purge.dry_run), (TopicName::stored("t"), true));
        assert_eq!(purge.states, State::ALL);
        assert_eq!(fields("t", &[]), ["states INVALID_FIELD"]);
        assert_eq!(fields("t", &[6, 0]), ["states[1] INVALID_FIELD"]);
        assert_eq!(fields("t", &[9, 6]), ["states[0] INVALID_FIELD"]);
        assert_eq!(fields("t", &[6, 1, 6]), ["states[2] INVALID_FIELD"]);
        assert_eq!(fields("a b", &[]), ["name INVALID_FIELD", "states INVALID_FIELD"]);
    }
}

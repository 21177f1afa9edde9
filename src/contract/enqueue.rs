//! Enqueue and BatchEnqueue.

use crate::domain::{Durability, limit};
use crate::pb;
use crate::scheduler::{AcceptedJob, Draft};

use super::spec::{EnqueueTerms, SpecContext, draft};
use super::{Checks, FieldPath, InvalidRequest, enums, names, time};

/// Drafts of a batch. A job that is refused does not affect the others.
pub(crate) struct EnqueueBatch {
    /// Jobs, in the order of the request.
    pub(crate) drafts: Vec<Result<Draft, InvalidRequest>>,
    /// Minimum durability, if one is requested.
    pub(crate) durability: Option<Durability>,
}

/// Reads an Enqueue request.
pub(crate) fn enqueue(
    request: pb::EnqueueRequest,
    context: SpecContext<'_>,
) -> Result<(Draft, Option<Durability>), InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    let pb::EnqueueRequest { job, on_conflict, request_id, durability } = request;
    let terms = terms(&mut checks, on_conflict, &request_id);
    let durability = enums::durability(&mut checks, root.field("durability"), durability);
    let draft = match job {
        Some(spec) => draft(&mut checks, root.field("job"), spec, terms, context),
        None => {
            checks.invalid(root.field("job"), "must be given");
            None
        }
    };
    checks.finish(draft.map(|draft| (draft, durability)))
}

/// Reads a BatchEnqueue request. Only an error of the request as a whole refuses it.
pub(crate) fn batch_enqueue(
    request: pb::BatchEnqueueRequest,
    context: SpecContext<'_>,
) -> Result<EnqueueBatch, InvalidRequest> {
    let (mut checks, root) = (Checks::default(), FieldPath::ROOT);
    let pb::BatchEnqueueRequest { jobs, on_conflict, request_id, durability } = request;
    checks.between_one_and(root.field("jobs"), jobs.len(), limit::BATCH_JOBS_MAX);
    let terms = terms(&mut checks, on_conflict, &request_id);
    let durability = enums::durability(&mut checks, root.field("durability"), durability);
    checks.finish(Some(()))?;
    let one = |(index, spec)| {
        let mut checks = Checks::default();
        let terms = EnqueueTerms { index: Some(index), ..terms };
        let draft = draft(&mut checks, FieldPath::ROOT, spec, terms, context);
        checks.finish(draft)
    };
    let drafts = jobs.into_iter().enumerate().map(one).collect();
    Ok(EnqueueBatch { drafts, durability })
}

/// Reads the terms that apply to all jobs of a request.
fn terms<'a>(checks: &mut Checks, on_conflict: i32, request_id: &'a str) -> EnqueueTerms<'a> {
    let root = FieldPath::ROOT;
    let on_conflict = enums::on_conflict(checks, root.field("on_conflict"), on_conflict);
    EnqueueTerms {
        on_conflict: on_conflict.unwrap_or_default(),
        request_id: names::request_id(checks, root.field("request_id"), request_id),
        index: None,
    }
}

/// Converts an accepted job to the answer of Enqueue.
pub(crate) fn to_enqueue_response(enqueued: AcceptedJob) -> pb::EnqueueResponse {
    pb::EnqueueResponse {
        id: enqueued.id.as_str().to_owned(),
        outcome: enums::to_enqueue_outcome(enqueued.outcome).into(),
        due_time: Some(time::to_timestamp(enqueued.due)),
        durability: enums::to_durability(enqueued.durability).into(),
        shard: enqueued.shard.as_str().to_owned(),
        state: enums::to_job_state(enqueued.state).into(),
    }
}

/// Converts an accepted job of a batch to its result.
pub(crate) fn to_enqueue_result(enqueued: AcceptedJob) -> pb::EnqueueResult {
    let response = to_enqueue_response(enqueued);
    pb::EnqueueResult {
        id: response.id,
        outcome: response.outcome,
        due_time: response.due_time,
        error: None,
        durability: response.durability,
        shard: response.shard,
        state: response.state,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::refused;
    use super::*;
    use crate::domain::{JobId, Time};

    const CONTEXT: SpecContext<'static> = SpecContext { now: Time(0), trace: None };

    fn spec(topic: &str) -> pb::JobSpec {
        pb::JobSpec { topic: topic.into(), ..Default::default() }
    }

    #[test]
    fn one_job_reports_all_of_its_violations() {
        type SetEnqueueField = fn(&mut pb::EnqueueRequest);
        let cases: [(SetEnqueueField, &[&str]); 6] = [
            (|_| (), &[]),
            (|r| r.job = None, &["job"]),
            (|r| r.on_conflict = 9, &["on_conflict"]),
            (|r| r.durability = -1, &["durability"]),
            (|r| r.request_id = "a b".into(), &["request_id"]),
            (
                |r| {
                    r.request_id = "r".repeat(65);
                    r.job = Some(pb::JobSpec { priority: Some(77), ..Default::default() });
                },
                &["request_id", "job.topic", "job.priority"],
            ),
        ];
        for (set, expected) in cases {
            let mut request = pb::EnqueueRequest { job: Some(spec("t")), ..Default::default() };
            set(&mut request);
            let found = refused(enqueue(request, CONTEXT));
            let fields: Vec<_> = found.iter().map(|(field, _)| field.as_str()).collect();
            assert_eq!(fields, expected);
        }
    }

    #[test]
    fn a_batch_is_refused_as_a_whole_only_for_what_concerns_the_whole() {
        let cases = [
            (pb::BatchEnqueueRequest::default(), ("jobs", "INVALID_FIELD")),
            (
                pb::BatchEnqueueRequest { jobs: vec![spec("t"); 1001], ..Default::default() },
                ("jobs", "TOO_LARGE"),
            ),
            (
                pb::BatchEnqueueRequest {
                    jobs: vec![spec("t")],
                    on_conflict: 5,
                    ..Default::default()
                },
                ("on_conflict", "INVALID_FIELD"),
            ),
        ];
        for (request, (field, reason)) in cases {
            assert_eq!(refused(batch_enqueue(request, CONTEXT)), [(field.to_owned(), reason)]);
        }
    }

    #[test]
    fn a_bad_job_of_a_batch_leaves_the_others_alone() {
        let request = pb::BatchEnqueueRequest {
            jobs: vec![spec("t"), spec(""), spec("t")],
            request_id: "r1".into(),
            ..Default::default()
        };
        let batch = batch_enqueue(request, CONTEXT).unwrap();
        let ids: Vec<_> = batch.drafts.iter().map(|draft| draft.as_ref().ok()).collect();
        let ids: Vec<_> = ids.into_iter().map(|d| d.and_then(|d| d.id.clone())).collect();
        let id = |text| Some(JobId::stored(text));
        assert_eq!(ids, [id("r=r1=0"), None, id("r=r1=2")]);
        let bad = batch.drafts.into_iter().nth(1).unwrap();
        assert_eq!(refused(bad), [("topic".to_owned(), "INVALID_FIELD")]);
    }
}

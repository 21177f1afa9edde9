//! Job as text for people.

use super::info::strip_enum_prefix;
use super::job_state;
use super::output::{Block, Table};
use super::times::{Now, short, span};
use crate::pb::job_spec::Expiration;
use crate::pb::payload::Kind;
use crate::pb::{Attempt, Job, JobSpec, JobState, Payload, RetryPolicy};

/// Most bytes of a binary payload that are shown.
const HEX_BYTES: usize = 64;

/// Note about a finished job whose payload and result are not kept.
const TOMBSTONE: &str =
    "state and id only; enqueue with --retention to keep payload, result and attempts";

/// Returns the block with everything about a job.
pub(super) fn block(job: &Job, now: Now) -> Block {
    let spec = job.spec.clone().unwrap_or_default();
    let mut block = Block::default();
    block.line("topic", &spec.topic);
    block.line("id", &spec.id);
    block.line("state", job_state::name(job.state()));
    if is_tombstone(job) {
        block.line("kept", TOMBSTONE);
    }
    times(&mut block, job, &spec, now);
    block.line("priority", spec.priority.unwrap_or(0).to_string());
    block.line("failures", counted(job.failures, spec.retry.as_ref().map(|r| r.max_attempts)));
    block
        .line("deliveries", counted(job.deliveries, spec.retry.as_ref().map(|r| r.max_deliveries)));
    if job.crashes > 0 {
        block.line("crashes", counted(job.crashes, spec.retry.as_ref().map(|r| r.max_crashes)));
    }
    block.line("retry", spec.retry.as_ref().map(retry).unwrap_or_default());
    block.line("lease", span(spec.lease_duration));
    block.line("retention", span(spec.retention));
    block.line("generation", job.generation.to_string());
    block.line("worker", &job.worker_id);
    block.line("progress", &job.progress);
    block.line("shard", &job.shard);
    block.line("headers", headers(&spec));
    payload(&mut block, "payload", spec.payload.as_ref());
    payload(&mut block, "result", job.result.as_ref());
    block.line("last error", &job.last_error);
    block.table("attempts", attempts(&job.attempts, now));
    block
}

fn times(block: &mut Block, job: &Job, spec: &JobSpec, now: Now) {
    block.line("created", now.full(job.create_time));
    block.line("due", now.full(job.due_time));
    block.line("lease ends", now.full(job.lease_expire_time));
    match spec.expiration {
        Some(Expiration::ExpireTime(time)) => block.line("expires", now.full(Some(time))),
        Some(Expiration::Ttl(ttl)) => block.line("expires", span(Some(ttl))),
        None => (),
    }
    block.line("finished", now.full(job.finish_time));
}

/// Returns whether the job is a tombstone: it was delivered, has ended, and has no bodies. A full record has at least
/// its last attempt. Dead jobs are always full records.
fn is_tombstone(job: &Job) -> bool {
    let ended =
        matches!(job.state(), JobState::Succeeded | JobState::Cancelled | JobState::Expired);
    let payload = job.spec.as_ref().and_then(|spec| spec.payload.as_ref());
    let bare = payload.is_none() && job.result.is_none() && job.attempts.is_empty();
    ended && job.deliveries > 0 && bare
}

/// Returns `2 of 5`, if the job has a limit.
fn counted(number: i32, most: Option<i32>) -> String {
    match most {
        Some(most) if most > 0 => format!("{number} of {most}"),
        _ => number.to_string(),
    }
}

fn retry(retry: &RetryPolicy) -> String {
    let mut parts = Vec::new();
    if retry.max_attempts != 0 {
        parts.push(match retry.max_attempts {
            1 => "one attempt".to_owned(),
            most => format!("at most {most} attempts"),
        });
    }
    if !retry.delays.is_empty() {
        let delays: Vec<_> = retry.delays.iter().map(|delay| span(Some(*delay))).collect();
        parts.push(format!("after {}", delays.join(", ")));
    }
    if let Some(longest) = retry.max_retry_duration {
        parts.push(format!("for {} at most", span(Some(longest))));
    }
    if !retry.crash_topic.is_empty() {
        parts.push(format!("crash topic {}", retry.crash_topic));
    }
    parts.join(", ")
}

fn headers(spec: &JobSpec) -> String {
    let mut headers: Vec<_> =
        spec.headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
    headers.sort_unstable();
    headers.join("\n")
}

fn payload(block: &mut Block, name: &'static str, payload: Option<&Payload>) {
    let Some(payload) = payload else { return };
    match &payload.kind {
        Some(Kind::Text(text)) => block.line(name, text),
        Some(Kind::Data(data)) => block.line(name, hex(data)),
        None => block.line(name, "(empty)"),
    }
    if !payload.content_type.is_empty() {
        block.line("content type", &payload.content_type);
    }
}

/// Formats bytes as `12 bytes: 00 ff …`.
fn hex(data: &[u8]) -> String {
    let shown: Vec<_> = data.iter().take(HEX_BYTES).map(|byte| format!("{byte:02x}")).collect();
    let more = if data.len() > HEX_BYTES { " …" } else { "" };
    format!("{} bytes: {}{more}", data.len(), shown.join(" "))
}

fn attempts(attempts: &[Attempt], now: Now) -> Table {
    let mut table = Table::new(["DELIVERY", "OUTCOME", "BEGAN", "TOOK", "WORKER", "ERROR"]);
    for attempt in attempts {
        table.row([
            attempt.number.to_string(),
            strip_enum_prefix(attempt.outcome().as_str_name(), "ATTEMPT_OUTCOME_").to_owned(),
            now.relative(attempt.start_time),
            took(attempt),
            attempt.worker_id.clone(),
            attempt.error.clone(),
        ]);
    }
    table
}

fn took(attempt: &Attempt) -> String {
    let micros = |time: prost_types::Timestamp| {
        i128::from(time.seconds) * 1_000_000 + i128::from(time.nanos / 1000)
    };
    let (Some(start), Some(finish)) = (attempt.start_time, attempt.finish_time) else {
        return String::new();
    };
    let micros = u64::try_from(micros(finish) - micros(start)).unwrap_or(0);
    short(std::time::Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_as_hex() {
        assert_eq!(hex(&[0, 255]), "2 bytes: 00 ff");
        assert!(hex(&[1; 100]).ends_with(" 01 …"));
    }

    #[test]
    fn a_job_without_a_payload_is_no_tombstone() {
        let ended = Job { deliveries: 1, ..Job::default() };
        let ended = |state: JobState| Job { state: state.into(), ..ended.clone() };
        assert!(is_tombstone(&ended(JobState::Succeeded)));
        assert!(!is_tombstone(&ended(JobState::Dead)) && !is_tombstone(&ended(JobState::Ready)));
        let tried = Job { attempts: vec![Attempt::default()], ..ended(JobState::Succeeded) };
        assert!(!is_tombstone(&tried));
        let never = Job { deliveries: 0, ..ended(JobState::Expired) };
        assert!(!is_tombstone(&never), "it may have had neither payload nor attempts");
    }

    #[test]
    fn the_attempt_limit_is_shown_if_the_job_sets_it() {
        assert_eq!(counted(2, Some(5)), "2 of 5");
        assert_eq!(counted(2, Some(0)), "2");
        assert_eq!(counted(2, Some(-1)), "2");
        assert_eq!(counted(2, None), "2");
    }
}

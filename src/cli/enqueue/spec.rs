//! The flags that describe a job.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use clap::Args;
use serde::de::IgnoredAny;

use super::exit::CommandFailure;
use super::{trace_context, values};
use crate::client::to_proto_duration;
use crate::pb::job_spec::{Expiration, Schedule};
use crate::pb::payload::Kind;
use crate::pb::{JobSpec, Payload, RetryPolicy};

/// Media type of text that is not JSON.
const PLAIN_TEXT: &str = "text/plain";

/// Flags that describe a job; the defaults are those of the server, and a topic may have its own.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct SpecArgs {
    /// Run the job this long after the server has it, by the server's clock: 250ms, 30s, 5m, 1h30m, 7d [default: at
    /// once]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, conflicts_with = "at")]
    delay: Option<Duration>,
    /// Run the job at this time, RFC 3339: 2027-01-31T09:00:00+01:00
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    at: Option<SystemTime>,
    /// Priority, 0 to 9; 9 goes first [default: 0]
    #[arg(long, value_name = "0-9", value_parser = values::priority, allow_hyphen_values = true)]
    priority: Option<i32>,
    /// Group of the job, such as a tenant: groups of a topic take turns [default: the jobs without a group]
    #[arg(long, value_name = "GROUP", value_parser = values::non_empty)]
    group: Option<String>,
    /// A header for the worker; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::header)]
    header: Vec<(String, String)>,
    /// The media type of the payload, which is not checked [default: application/json for text that
    /// is JSON, text/plain for other text, else application/octet-stream]
    #[arg(long, value_name = "TYPE", value_parser = values::non_empty)]
    content_type: Option<String>,
    /// Failures allowed; 1: no retry, -1: no limit [default: 25]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true, value_parser = values::attempts)]
    max_attempts: Option<i32>,
    /// The waits between attempts; the last one repeats [default: 1s, then twice as long each time
    /// up to 1h, and each up to 20 % shorter by chance]
    #[arg(long, value_name = "DURATION,…", value_delimiter = ',', value_parser = values::duration, allow_hyphen_values = true)]
    retry_delays: Vec<Duration>,
    /// Crashes of its workers allowed: expired leases, and streams that they broke; -1: no limit [default: no limit]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = values::attempts)]
    max_crashes: Option<i32>,
    /// Topic to which the job moves when --max-crashes, or that of its topic, is reached; -: none [default: it is DEAD]
    #[arg(long, value_name = "TOPIC", value_parser = values::non_empty, allow_hyphen_values = true)]
    crash_topic: Option<String>,
    /// No retry of a job that fails this long after its first attempt began [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    max_retry_duration: Option<Duration>,
    /// Time an attempt may take without being settled or extended, 1s to 24h [default: what its
    /// worker asks for, else 30m]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    lease: Option<Duration>,
    /// The job expires unless it runs within this time [default: never]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true, conflicts_with = "expires")]
    ttl: Option<Duration>,
    /// The job expires unless it runs by this time, RFC 3339
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    expires: Option<SystemTime>,
    /// Time for which job, result and id are kept once the job has ended [default: 60s without
    /// payload and result if the id is yours, else 0s; with --wait 10m; dead letters 14d]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    retention: Option<Duration>,
}

// === impl SpecArgs ===

impl SpecArgs {
    /// Builds the job that these flags describe.
    pub(super) fn job(&self, topic: &str) -> Result<JobSpec, CommandFailure> {
        let delay = self.delay.map(|delay| Schedule::Delay(to_proto_duration(delay)));
        let ttl = self.ttl.map(|ttl| Expiration::Ttl(to_proto_duration(ttl)));
        Ok(JobSpec {
            topic: topic.to_owned(),
            headers: self.headers()?,
            schedule: delay.or_else(|| self.at.map(|time| Schedule::DueTime(time.into()))),
            priority: self.priority,
            retry: self.retry(),
            lease_duration: self.lease.map(to_proto_duration),
            expiration: ttl
                .or_else(|| self.expires.map(|time| Expiration::ExpireTime(time.into()))),
            retention: self.retention.map(to_proto_duration),
            group: self.group.clone().unwrap_or_default(),
            ..Default::default()
        })
    }

    /// Returns the time at which the job is to run, if one was given.
    pub(super) fn at(&self) -> Option<SystemTime> {
        self.at
    }

    /// Sets the media type of the payload. Without one the API takes text for JSON.
    pub(super) fn typed(&self, payload: Payload) -> Payload {
        let by_default = || if no_json(&payload).is_some() { PLAIN_TEXT } else { "" }.to_owned();
        Payload { content_type: self.content_type.clone().unwrap_or_else(by_default), ..payload }
    }

    /// Describes the error of a payload that looks like JSON but is not, and is sent as plain text.
    pub(super) fn broken_json(&self, payload: &Payload) -> Option<String> {
        let looks_like_it = payload.bytes().trim_ascii_start().starts_with(b"{");
        if self.content_type.is_some() || !looks_like_it {
            return None;
        }
        let error = no_json(payload)?;
        Some(format!("is not JSON ({error}) and is sent as {PLAIN_TEXT}"))
    }

    fn headers(&self) -> Result<HashMap<String, String>, CommandFailure> {
        let mut headers = HashMap::new();
        for (name, value) in &self.header {
            if headers.insert(name.clone(), value.clone()).is_some() {
                return Err(CommandFailure::usage(format!("--header {name} is given twice")));
            }
        }
        trace_context::add_to_headers(&mut headers);
        Ok(headers)
    }

    fn retry(&self) -> Option<RetryPolicy> {
        let retry = RetryPolicy {
            max_attempts: self.max_attempts.unwrap_or_default(),
            delays: self.retry_delays.iter().copied().map(to_proto_duration).collect(),
            max_retry_duration: self.max_retry_duration.map(to_proto_duration),
            max_crashes: self.max_crashes.unwrap_or_default(),
            crash_topic: self.crash_topic.clone().unwrap_or_default(),
            ..Default::default()
        };
        Some(retry).filter(|retry| *retry != RetryPolicy::default())
    }
}

/// Returns the error if a text is not JSON.
fn no_json(payload: &Payload) -> Option<serde_json::Error> {
    match &payload.kind {
        Some(Kind::Text(text)) => serde_json::from_str::<IgnoredAny>(text).err(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::duration_text::show_duration;
    use crate::domain::RetryPolicy as Server;

    #[test]
    fn the_help_names_the_servers_retry_defaults() {
        let command = SpecArgs::augment_args(clap::Command::new("enqueue"));
        let help = |flag: &str| {
            let found = command.get_arguments().find(|arg| arg.get_id() == flag).unwrap();
            found.get_help().unwrap().to_string()
        };
        let Server { max_attempts, initial_delay, multiplier, max_delay, jitter, .. } =
            Server::default();
        let attempts = format!("[default: {}]", max_attempts.unwrap());
        assert!(help("max_attempts").contains(&attempts), "{}", help("max_attempts"));
        assert_eq!(multiplier, 2.0, "twice as long each time");
        let waits = format!(
            "[default: {}, then twice as long each time up to {}, and each up to {} % shorter by chance]",
            show_duration(initial_delay),
            show_duration(max_delay),
            jitter * 100.0
        );
        assert!(help("retry_delays").contains(&waits), "{waits}: {}", help("retry_delays"));
    }
}

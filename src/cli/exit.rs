//! Failure of a command: problem, reason, hint and exit code.

use std::process::ExitCode;
use std::time::Duration;

use tonic::Code;

use super::text::printable;
use crate::client::Error;
use crate::config::InvalidSettings;
use crate::contract::duration_text::show_duration;
use crate::stderr;

/// The request failed: the server rejected it, or the wanted result was not reached.
pub(super) const FAILED: u8 = 1;
/// Wrong usage or configuration, found before anything was sent; also clap's exit code.
pub(super) const USAGE: u8 = 2;
/// No such job or topic.
pub(super) const NOT_FOUND: u8 = 3;
/// The server or a shard did not answer.
pub(super) const UNAVAILABLE: u8 = 4;
/// Ended by Ctrl-C.
pub(super) const INTERRUPTED: u8 = 130;
/// Ended by SIGTERM after a final message: the code that a shell reports for a process without a handler.
pub(super) const TERMINATED: u8 = 143;

/// Failure of a command, with its exit code.
#[derive(Debug)]
pub(super) struct CommandFailure {
    code: u8,
    /// Problems, one line each. Empty if they were printed already.
    problems: Vec<String>,
    hint: Option<String>,
}

// === impl CommandFailure ===

impl CommandFailure {
    /// Builds a failure with this exit code.
    pub(super) fn new(code: u8, problem: impl Into<String>) -> CommandFailure {
        CommandFailure { code, problems: vec![problem.into()], hint: None }
    }

    /// Builds a failure for a mistake of the caller, found on this side.
    pub(super) fn usage(problem: impl Into<String>) -> CommandFailure {
        CommandFailure::new(USAGE, problem)
    }

    /// Builds a failure whose problems were printed already.
    pub(super) fn already_reported(code: u8) -> CommandFailure {
        CommandFailure { code, problems: Vec::new(), hint: None }
    }

    /// Builds the failure of a call; `what` names the purpose, as in "cannot read job emails/7".
    pub(super) fn from_call(what: &str, error: &Error) -> CommandFailure {
        CommandFailure {
            code: code(error),
            problems: vec![format!("{what}: {}", reason(error))],
            hint: default_hint(error),
        }
    }

    /// Sets the hint; replaces an earlier one.
    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> CommandFailure {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the hint, unless there is one already.
    pub(super) fn with_default_hint(mut self, hint: impl FnOnce() -> String) -> CommandFailure {
        self.hint.get_or_insert_with(hint);
        self
    }

    /// Returns the problems with their reasons, as the middle of a sentence.
    pub(super) fn problem(&self) -> String {
        self.problems.join("; ")
    }

    /// Returns the exit code.
    pub(super) fn code(&self) -> u8 {
        self.code
    }

    /// Prints the failure on stderr and returns its exit code.
    pub(super) fn report(&self) -> ExitCode {
        self.print();
        ExitCode::from(self.code)
    }

    /// Prints the failure on stderr without ending the command.
    pub(super) fn print(&self) {
        self.problems.iter().for_each(|problem| print_error(problem));
        if let Some(hint) = &self.hint {
            print_note(&format!("  {hint}"));
        }
    }
}

impl From<InvalidSettings> for CommandFailure {
    fn from(mistakes: InvalidSettings) -> CommandFailure {
        let problems = mistakes.iter().map(ToString::to_string).collect();
        CommandFailure { code: USAGE, problems, hint: None }
    }
}

impl From<anyhow::Error> for CommandFailure {
    fn from(error: anyhow::Error) -> CommandFailure {
        CommandFailure::new(FAILED, format!("{error:#}"))
    }
}

/// Prints a line on stderr.
pub(super) fn print_error(problem: &str) {
    let problem = printable(problem);
    if stderr::is_coloured() {
        let style = anstyle::AnsiColor::Red.on_default().bold();
        stderr::write(format!("{style}ringq:{style:#} {problem}\n").as_bytes());
    } else {
        stderr::write(format!("ringq: {problem}\n").as_bytes());
    }
}

/// Queues all lines for stderr from now on, so that this process never waits for its reader.
pub(super) fn queue_stderr() -> Result<(), CommandFailure> {
    let lost = |lost| {
        let lines = if lost == 1 { "line was" } else { "lines were" };
        format!("ringq: {lost} {lines} lost: the reader of standard error did not take them\n")
    };
    stderr::queue(move |count| lost(count).into_bytes())
        .map_err(|error| anyhow::Error::from(error).context("cannot start a thread").into())
}

/// Prints a note on stderr that is not a failure.
pub(super) fn print_note(text: &str) {
    stderr::write(format!("{}\n", printable(text)).as_bytes());
}

/// Returns the notice of a retry, without which a command would seem to do nothing.
pub(super) fn retry_notice(limit: Duration) -> String {
    format!("trying again for up to {}", show_duration(limit))
}

/// Returns the exit code of an error. Errors of the server and errors found before anything was sent have different
/// codes, so that a script can distinguish them.
fn code(error: &Error) -> u8 {
    match error.code() {
        Code::NotFound => NOT_FOUND,
        _ if error.is_unavailable() || error.is_not_grpc() => UNAVAILABLE,
        Code::InvalidArgument if is_local(error) => USAGE,
        _ => FAILED,
    }
}

/// Returns whether the client library rejected the call; the server's reasons are others.
fn is_local(error: &Error) -> bool {
    error.reason() == "INVALID_ARGUMENT"
}

/// Reasons whose messages contain, after a semicolon, advice for programs; people get a hint instead.
const REASONS_WITH_PROGRAM_ADVICE: [&str; 11] = [
    "DRAINING",
    "DURABILITY_NOT_REACHED",
    "JOB_EXISTS",
    "OUTCOME_UNKNOWN",
    "QUOTA_EXCEEDED",
    "RATE_LIMITED",
    "SHARD_NOT_FOUND",
    "SHARD_UNAVAILABLE",
    "STORE_FULL",
    "TOO_MANY_STREAMS",
    "WRONG_JOB_STATE",
];

/// Hint for shards that were not asked, or did not answer.
pub(super) const SHARDS_HINT: &str =
    "`ringq shard list` prints the configured shards, and why one does not answer";

/// Fails if the numbers, which are printed, are without some shards.
pub(super) fn fail_if_partial<'a>(
    shards: impl Iterator<Item = &'a String>,
) -> Result<(), CommandFailure> {
    let mut names: Vec<&str> = shards.map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Ok(());
    }
    print_error(&format!(
        "the result is without shards that do not answer, or are not configured at this server: {}",
        names.join(", ")
    ));
    Err(CommandFailure::already_reported(UNAVAILABLE).with_hint(SHARDS_HINT))
}

/// Returns the server's message without its advice for programs.
pub(super) fn human_message(error: &Error) -> &str {
    let message = error.message();
    match message.rsplit_once("; ") {
        Some((what, _)) if REASONS_WITH_PROGRAM_ADVICE.contains(&error.reason()) => what,
        _ => message,
    }
}

/// Returns the server's message; a transport error is changed to fit into the middle of a sentence.
fn reason(error: &Error) -> String {
    let message = error.message();
    if !error.reason().is_empty() {
        return human_message(error).to_owned();
    }
    // Removes the suffix of a system error, as in "Connection refused (os error 111)".
    let message = message.split(" (os error").next().unwrap_or(message);
    if message.is_empty() {
        return format!("the server answered {:?}", error.code());
    }
    let mut chars = message.chars();
    let first = chars.next().map(|c| c.to_lowercase().to_string()).unwrap_or_default();
    // TLS and HTTP keep their capitals.
    if chars.as_str().starts_with(|c: char| c.is_uppercase()) {
        return message.to_owned();
    }
    format!("{first}{}", chars.as_str())
}

/// Returns the hint for errors that any command can get.
fn default_hint(error: &Error) -> Option<String> {
    let text = match error.reason() {
        "TOPIC_NOT_FOUND" => "`ringq topic list` prints the existing topics".to_owned(),
        "SHARD_NOT_FOUND" => "`ringq shard list` prints the configured shards".to_owned(),
        "LAST_ACTIVE_SHARD" => "`ringq shard activate` lets another shard take new jobs".to_owned(),
        "STORE_FULL" => "the disk or memory of the shard is full: free or add space".to_owned(),
        "SHARD_UNAVAILABLE" => SHARDS_HINT.to_owned(),
        "DURABILITY_UNSUPPORTED" => "`ringq info` prints the durability of this server".to_owned(),
        "TOO_LARGE" => {
            let limits = "`ringq info` prints the limits of this server";
            let flag = error.field().and_then(flag_of_field).map(|flag| format!("{flag}; "));
            format!("{}{limits}", flag.unwrap_or_default())
        }
        "FEATURE_UNSUPPORTED" => "`ringq info` prints the features of this server".to_owned(),
        "DRAINING" => "this server is shutting down: try again soon".to_owned(),
        "OUTCOME_UNKNOWN" | "DURABILITY_NOT_REACHED" => unknown_outcome(error),
        _ if error.is_not_grpc() => {
            "is it the HTTP port? ringq's gRPC port is 7700 by default".to_owned()
        }
        _ => match error.code() {
            Code::Unauthenticated => "check the token, or the client certificate".to_owned(),
            Code::PermissionDenied => {
                "an operator of the server gives rights to the identity of this token or client certificate"
                    .to_owned()
            }
            Code::Unimplemented => {
                "this server does not implement the call: compare `ringq info` with `ringq --version`"
                    .to_owned()
            }
            Code::InvalidArgument => return error.field().and_then(flag_of_field),
            Code::ResourceExhausted | Code::Unavailable => {
                let wait = error.retry_after()?;
                format!("try again in {} ms", wait.as_millis().max(1))
            }
            _ => return None,
        },
    };
    Some(text)
}

fn unknown_outcome(error: &Error) -> String {
    match error.metadata("id") {
        Some(id) => format!("the request may have been applied; a repeat with the id {id} is safe"),
        None => "the request may have been applied".to_owned(),
    }
}

/// Returns a hint with the flag that sets a field of a request, as in `job.retry.delays[2]`.
fn flag_of_field(field: &str) -> Option<String> {
    let of_new_job = field.strip_prefix("job.");
    let path = of_new_job.unwrap_or(field);
    let path = path.split('[').next().unwrap_or(path);
    let flag = match path {
        "topic" | "name" => "TOPIC",
        "id" if of_new_job.is_some() => "--id",
        "id" | "ids" => "ID",
        "payload" | "payload.text" | "payload.data" => "PAYLOAD",
        "payload.content_type" => "--content-type",
        "headers" => "--header",
        "delay" => "--delay",
        "due_time" => "--at",
        "priority" => "--priority",
        "retry.max_attempts" => "--max-attempts",
        "retry.max_crashes" => "--max-crashes",
        "retry.crash_topic" => "--crash-topic",
        "retry.delays" => "--retry-delays",
        "retry.max_retry_duration" => "--max-retry-duration",
        "lease_duration" => "--lease",
        "ttl" => "--ttl",
        "expire_time" => "--expires",
        "retention" => "--retention",
        "request_id" => "--request-id",
        "durability" => "--durability",
        "on_conflict" => "--on-conflict",
        "target_topic" => "--to",
        "states" => "--state",
        "max_rate" => "--rate",
        "prefix" => "PREFIX",
        _ => return None,
    };
    Some(format!("it is set by {flag}"))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    #[test]
    fn advice_for_programs_is_not_shown() {
        let shown = |reason: &str, message: &str| {
            let details = ErrorDetails::with_error_info(reason, "ringq.dev", HashMap::new());
            let status = tonic::Status::with_error_details(Code::Unknown, message, details);
            human_message(&Error::from(status)).to_owned()
        };
        for (reason, message, want) in [
            ("JOB_EXISTS", "the id is taken; read the job with Get, or ask", "the id is taken"),
            ("STORE_FULL", "it is full; wait as in RetryInfo", "it is full"),
            ("DURABILITY_UNSUPPORTED", "not enough; ask for less", "not enough; ask for less"),
            ("DRAINING", "plain", "plain"),
        ] {
            assert_eq!(shown(reason, message), want);
        }
    }

    #[test]
    fn transport_errors_start_in_lower_case() {
        let text_of = |text: &str| reason(&Error::from(tonic::Status::unavailable(text)));
        assert_eq!(text_of("Connection refused (os error 111)"), "connection refused");
        assert_eq!(text_of("TLS failed: x"), "TLS failed: x");
    }

    #[test]
    fn fields_lead_to_flags() {
        for (field, want) in [
            ("job.retry.delays[2]", Some("it is set by --retry-delays")),
            ("retry.delays[0]", Some("it is set by --retry-delays")),
            ("job.lease_duration", Some("it is set by --lease")),
            ("topic", Some("it is set by TOPIC")),
            ("job.id", Some("it is set by --id")),
            ("id", Some("it is set by ID")),
            ("page_token", None),
        ] {
            assert_eq!(flag_of_field(field).as_deref(), want, "{field}");
        }
    }
}

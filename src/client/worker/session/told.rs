//! What a session tells of its connection and its calls.

use std::time::Duration;

use tonic::Code;
use tracing::{debug, info, warn};

use super::{Session, Slot};
use crate::client::Error;

/// What was said last of the connection: each change is told once, however many tries it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    Connected,
    Lost,
}

// === impl Session ===

impl Session {
    pub(super) fn tell_connected(&mut self) {
        let again = match self.told {
            Told::Connected => return,
            Told::Lost => " again",
            Told::Nothing => "",
        };
        self.told = Told::Connected;
        let (url, topics, most) = (self.client.url(), self.topics.join(", "), self.concurrency);
        let each = match (self.batch, most) {
            (..=1, _) => String::new(),
            (batch, 1) => format!(" batch of {batch}"),
            (batch, _) => format!(" batches of {batch}"),
        };
        info!("connected to {url}{again}, taking {topics} (up to {most}{each} at once)");
    }

    pub(super) fn tell_lost(&mut self, error: &Error, pause: Duration) {
        debug!(%error, again_in = ?pause, "no stream");
        if self.told == Told::Lost {
            return;
        }
        self.told = Told::Lost;
        let url = self.client.url();
        let what = if error.is_unavailable() && error.reason().is_empty() {
            "no connection to"
        } else {
            "no jobs from"
        };
        warn!("{what} {url}: {}; trying again until it is back", in_sentence(cause(error)));
    }

    /// A job's settle or Extend did not get through and is repeated.
    pub(super) fn tell_trouble(&mut self, slot: Slot, error: &Error) {
        // Of a connection that is gone its stream tells.
        if error.code() == Code::Unavailable && error.reason().is_empty() {
            return;
        }
        let Some(job) = self.leases.job(slot) else { return };
        let cause = in_sentence(cause(error));
        if self.trouble.meets(slot, &cause) {
            warn!(
                "{job} cannot be extended or settled yet: {cause}; trying again until its lease is over"
            );
        }
    }

    /// A call for this job got through.
    pub(super) fn tell_passed(&mut self, slot: Slot) {
        if let Some(cause) = self.trouble.passed(slot) {
            info!("calls get through again; it was: {cause}");
        }
    }
}

/// What became of a job that is not known to be settled.
pub(super) fn not_settled(error: &Error) -> String {
    let what = if error.outcome_unknown() { "may be settled or not" } else { "was not settled" };
    let again = if error.is_unavailable() { ", so it may run again" } else { "" };
    format!("{what}: {}{again}", cause(error))
}

/// What a server says, without what a program is to do behind a semicolon: that is being done.
fn cause(error: &Error) -> &str {
    let message = error.message();
    match message.rsplit_once("; ") {
        Some((cause, _)) if !error.reason().is_empty() => cause,
        _ => message,
    }
}

/// The system's "Connection refused (os error 111)", as the middle of a sentence.
fn in_sentence(message: &str) -> String {
    let message = message.split(" (os error").next().unwrap_or(message);
    let mut chars = message.chars();
    match chars.next() {
        // TLS stays what it is.
        Some(first) if !chars.as_str().starts_with(char::is_uppercase) => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => message.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    #[test]
    fn what_a_program_is_to_do_is_not_told() {
        let told = |reason: &str, message: &str| {
            let details = ErrorDetails::with_error_info(reason, "ringq.dev", HashMap::new());
            let status =
                tonic::Status::with_error_details(tonic::Code::Unavailable, message, details);
            cause(&Error::from(status)).to_owned()
        };
        assert_eq!(told("DRAINING", "it is leaving; repeat elsewhere"), "it is leaving");
        assert_eq!(told("DRAINING", "it is leaving"), "it is leaving");
        let bare = Error::from(tonic::Status::unavailable("a proxy; is down"));
        assert_eq!(cause(&bare), "a proxy; is down");
    }

    #[test]
    fn a_job_whose_answers_are_lost_is_not_said_to_be_unsettled() {
        let draining = || {
            let details = ErrorDetails::with_error_info("DRAINING", "ringq.dev", HashMap::new());
            let leaving = "it is leaving; repeat elsewhere";
            Error::from(tonic::Status::with_error_details(Code::Unavailable, leaving, details))
        };
        let told = not_settled(&draining());
        assert_eq!(told, "was not settled: it is leaving, so it may run again");
        let told = not_settled(&draining().or_unknown(true));
        assert_eq!(told, "may be settled or not: it is leaving, so it may run again");
        let stale = not_settled(&Error::from(tonic::Status::failed_precondition("it is over")));
        assert_eq!(stale, "was not settled: it is over");
    }

    #[test]
    fn causes_stand_in_the_middle_of_a_sentence() {
        for (message, want) in [
            ("Connection refused (os error 111)", "connection refused"),
            ("TLS failed: x", "TLS failed: x"),
            ("", ""),
        ] {
            assert_eq!(in_sentence(message), want);
        }
    }
}

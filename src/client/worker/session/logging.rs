//! Log messages of a session about its connection and its calls.

use std::time::Duration;

use tonic::Code;
use tracing::{debug, info, warn};

use super::{JobSlot, WorkerSession};
use crate::client::Error;
use crate::client::error::in_sentence;

/// Connection state logged last: each change, also of the reason, is logged once, for any number of attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LoggedConnectionState {
    NotLogged,
    Connected,
    /// Disconnected, with the reason that the server gave; empty without one.
    Disconnected(String),
}

// === impl WorkerSession ===

impl WorkerSession {
    pub(super) fn log_connected(&mut self) {
        let again = match &self.logged_state {
            LoggedConnectionState::Connected => return,
            LoggedConnectionState::Disconnected(_) => " again",
            LoggedConnectionState::NotLogged => "",
        };
        self.logged_state = LoggedConnectionState::Connected;
        let (url, topics, most) =
            (self.stream.server_url(), self.topics.join(", "), self.concurrency);
        let each = match (self.batch, most) {
            (..=1, _) => String::new(),
            (batch, 1) => format!(" batch of {batch}"),
            (batch, _) => format!(" batches of {batch}"),
        };
        info!("connected to {url}{again}, taking {topics} (up to {most}{each} at once)");
    }

    pub(super) fn log_disconnected(&mut self, error: &Error, pause: Duration) {
        debug!(%error, again_in = ?pause, "job stream failed; opening another one after a pause");
        // A server that has gone after it refused the stream is no news.
        if let LoggedConnectionState::Disconnected(reason) = &self.logged_state
            && (error.reason().is_empty() || reason == error.reason())
        {
            return;
        }
        self.logged_state = LoggedConnectionState::Disconnected(error.reason().to_owned());
        let (url, cause) = (self.client.url(), in_sentence(error_cause(error)));
        if self.client.has_several_servers() {
            warn!("no jobs from {url}: {cause}; retrying until one answers");
            return;
        }
        let what = if error.is_unavailable() && error.reason().is_empty() {
            "no connection to"
        } else {
            "no jobs from"
        };
        warn!("{what} {url}: {cause}; retrying until it answers");
    }

    /// Logs a settle or Extend of a job that failed and is retried.
    pub(super) fn log_call_failure(&mut self, slot: JobSlot, error: &Error) {
        // The stream logs a lost connection.
        if error.code() == Code::Unavailable && error.reason().is_empty() {
            return;
        }
        let Some(job) = self.leases.job(slot) else { return };
        let cause = in_sentence(error_cause(error));
        if self.failure_causes.record(slot, &cause) {
            warn!(
                "{job} cannot be extended or settled yet: {cause}; retrying while its lease lasts"
            );
        }
    }

    /// Logs a successful call for a job.
    pub(super) fn log_call_recovered(&mut self, slot: JobSlot) {
        if let Some(cause) = self.failure_causes.resolve(slot) {
            info!("calls succeed again; the cause was: {cause}");
        }
    }
}

/// Returns the log text for a job that is not known to be settled.
pub(super) fn settle_failure_text(error: &Error) -> String {
    let what = if error.outcome_unknown() { "may be settled or not" } else { "was not settled" };
    let again = if error.is_unavailable() { ", so it may run again" } else { "" };
    format!("{what}: {}{again}", error_cause(error))
}

/// Returns a server's message without the advice for programs after its semicolon: this library follows it already.
pub(super) fn error_cause(error: &Error) -> &str {
    let message = error.message();
    match message.rsplit_once("; ") {
        Some((cause, _)) if !error.reason().is_empty() => cause,
        _ => message,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::{ErrorDetails, StatusExt as _};

    use super::*;

    #[test]
    fn advice_for_programs_is_not_logged() {
        let cause = |reason: &str, message: &str| {
            let details = ErrorDetails::with_error_info(reason, "ringq.dev", HashMap::new());
            let status =
                tonic::Status::with_error_details(tonic::Code::Unavailable, message, details);
            error_cause(&Error::from(status)).to_owned()
        };
        assert_eq!(cause("DRAINING", "it is leaving; repeat elsewhere"), "it is leaving");
        assert_eq!(cause("DRAINING", "it is leaving"), "it is leaving");
        let bare = Error::from(tonic::Status::unavailable("a proxy; is down"));
        assert_eq!(error_cause(&bare), "a proxy; is down");
    }

    #[test]
    fn a_lost_response_is_logged_as_outcome_unknown() {
        let draining = || {
            let details = ErrorDetails::with_error_info("DRAINING", "ringq.dev", HashMap::new());
            let leaving = "it is leaving; repeat elsewhere";
            Error::from(tonic::Status::with_error_details(Code::Unavailable, leaving, details))
        };
        let text = settle_failure_text(&draining());
        assert_eq!(text, "was not settled: it is leaving, so it may run again");
        let text = settle_failure_text(&draining().with_earlier_unknown(true));
        assert_eq!(text, "may be settled or not: it is leaving, so it may run again");
        let stale =
            settle_failure_text(&Error::from(tonic::Status::failed_precondition("it is over")));
        assert_eq!(stale, "was not settled: it is over");
    }
}

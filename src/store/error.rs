//! Errors of a shard. Every caller has to check [`Error::outcome_unknown`]: the call may have been applied all the
//! same.

/// Error of a call. Nothing of it was applied, except with [`Error::outcome_unknown`] or [`Error::Corrupt`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The shard has no room; nothing was written.
    #[error("the store is full: {0}")]
    Full(String),
    /// The shard does not answer or refuses; nothing was written.
    #[error("{0}")]
    Unavailable(String),
    /// The call waited too long for its turn, as all calls do at the moment; nothing was written.
    #[error("{0}")]
    Overloaded(String),
    /// The deadline of the caller had passed before the call was executed; nothing was written.
    #[error("{0}")]
    DeadlineExceeded(String),
    /// The call was sent and no reply came: it may have been applied.
    #[error("the outcome is unknown: {0}")]
    OutcomeUnknown(String),
    /// Other servers changed the job each time before it could be written; nothing was written.
    #[error("{0}")]
    Contention(String),
    /// The stored data is inconsistent. Writes that a script made before it found this stay, so a retry does not help
    /// until an operator has repaired the data.
    #[error("the stored data is corrupt: {0}")]
    Corrupt(String),
}

// === impl Error ===

impl Error {
    /// Returns whether the call may have been applied.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        match self {
            Error::OutcomeUnknown(_) => true,
            Error::Full(_)
            | Error::Unavailable(_)
            | Error::Overloaded(_)
            | Error::DeadlineExceeded(_)
            | Error::Contention(_)
            | Error::Corrupt(_) => false,
        }
    }

    /// Returns whether a part of the call may have been applied, although the shard has answered.
    #[must_use]
    pub fn may_be_applied(&self) -> bool {
        self.outcome_unknown() || matches!(self, Error::Corrupt(_))
    }

    /// Returns whether the error concerns the shard as a whole, not only the requested job.
    #[must_use]
    pub fn is_shard_failure(&self) -> bool {
        match self {
            Error::Unavailable(_) | Error::OutcomeUnknown(_) => true,
            Error::Full(_)
            | Error::Overloaded(_)
            | Error::DeadlineExceeded(_)
            | Error::Contention(_)
            | Error::Corrupt(_) => false,
        }
    }

    /// Returns the text of the error, without its class.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Error::Full(text)
            | Error::Unavailable(text)
            | Error::Overloaded(text)
            | Error::DeadlineExceeded(text)
            | Error::OutcomeUnknown(text)
            | Error::Contention(text)
            | Error::Corrupt(text) => text,
        }
    }

    /// Returns the stable name, as in metrics and error details.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Error::Full(_) => "STORE_FULL",
            Error::Unavailable(_) | Error::DeadlineExceeded(_) => "SHARD_UNAVAILABLE",
            Error::Overloaded(_) => "RATE_LIMITED",
            Error::OutcomeUnknown(_) => "OUTCOME_UNKNOWN",
            Error::Contention(_) => "CONTENTION",
            Error::Corrupt(_) => "STORE_CORRUPT",
        }
    }
}

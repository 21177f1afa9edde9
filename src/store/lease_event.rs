//! What the streams of a replica must hear about their leases, whoever changed them: this replica's own
//! calls, or another one's, of which the store tells.

use crate::domain::{Time, Token};

/// What became of leases of one stream of this replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// Their worker is done with these, which it has settled, or tried to when they were over: their credit is free.
    Settled {
        /// The stream.
        stream: u32,
        /// Its leases.
        tokens: Vec<Token>,
    },
    /// Their worker is done with these, but the shard is down and has not taken the settle: their credit is free,
    /// and their stream still answers for them.
    SettlePending {
        /// The stream.
        stream: u32,
        /// Its leases.
        tokens: Vec<Token>,
    },
    /// These last until another time.
    Extended {
        /// The stream.
        stream: u32,
        /// Its leases.
        tokens: Vec<Token>,
        /// Their end, by the store's clock.
        deadline: Time,
    },
    /// A stream of another replica has adopted these: this one does not answer for them any more.
    Adopted {
        /// The stream.
        stream: u32,
        /// Its leases.
        tokens: Vec<Token>,
    },
    /// These were taken away: their worker must stop.
    Revoked {
        /// The stream.
        stream: u32,
        /// Its leases.
        tokens: Vec<Token>,
        /// Why.
        reason: RevokeReason,
    },
}

/// Why a lease was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeReason {
    /// The job was deleted.
    Deleted,
    /// Its deadline passed, or it was given back because nobody spoke for it.
    LeaseExpired,
}

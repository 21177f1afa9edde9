//! Notifications for the streams of a replica about their leases, changed by this replica's own calls or, as the
//! store reports, by another replica.

use crate::domain::{Time, Token};

/// Change of leases of one stream of this replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// The worker is done with these leases: it has settled them, or tried to after their end. Their credit is free.
    Settled {
        /// The stream.
        stream: u32,
        /// Its leases.
        tokens: Vec<Token>,
    },
    /// The worker is done with these leases, but the shard is down and has not stored the settle: their credit is
    /// free, and their stream still answers for them.
    SettlePending {
        /// The stream.
        stream: u32,
        /// Its leases.
        tokens: Vec<Token>,
    },
    /// The leases have a new deadline.
    Extended {
        /// The stream.
        stream: u32,
        /// Its leases.
        tokens: Vec<Token>,
        /// New deadline, by the store's clock.
        deadline: Time,
    },
    /// A stream of another replica has adopted the leases: this one does not answer for them any more.
    Adopted {
        /// The stream.
        stream: u32,
        /// Its leases.
        tokens: Vec<Token>,
    },
    /// The leases were revoked: the worker must stop.
    Revoked {
        /// The stream.
        stream: u32,
        /// Its leases.
        tokens: Vec<Token>,
        /// Reason of the revocation.
        reason: RevokeReason,
    },
}

/// Reason for which a lease was revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RevokeReason {
    /// The job was deleted.
    Deleted,
    /// The deadline passed, or the lease was released after its stream broke and no client extended it.
    LeaseExpired,
}

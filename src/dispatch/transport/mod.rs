//! The two ways out of the server, and the time after which a way out ends.
//!
//! - `outbox`: the messages of a stream
//! - `pull`: the jobs of one call
//! - `lifetime`: ends a stream by age or idle time, whether its transport is polled or not

pub(super) mod lifetime;
pub(super) mod outbox;
pub(super) mod pull;

//! The dispatcher over a real store in memory, with a clock that is moved by hand. What these tests
//! wait for happens within milliseconds; what they expect not to happen they give 50 of them.

mod adoption;
mod chaos;
mod deliveries;
mod harness;
mod lease_return;
mod other_replicas;
mod pulls;
mod revocations;
mod several_shards;
mod silent_replicas;
mod stream_churn;
mod stream_lifecycle;
mod worker_crash;

use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

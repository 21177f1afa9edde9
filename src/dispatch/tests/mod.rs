//! Tests of the dispatcher over a real store in memory, with a clock that is moved by hand. Expected events happen
//! within milliseconds; a test waits 50 ms to check that an event does not happen.

mod adoption;
mod chaos;
mod crashes;
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

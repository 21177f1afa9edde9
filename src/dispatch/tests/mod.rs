//! The dispatcher over a real store in memory, with a clock that is moved by hand. What these tests
//! wait for happens within milliseconds; what they expect not to happen they give 50 of them.

mod adoption;
mod chaos;
mod churn;
mod deliveries;
mod dying;
mod give_back;
mod harness;
mod life;
mod others;
mod pulls;
mod revocations;
mod ring;
mod silence;

use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

//! All scenarios, by subject.

mod handlers;
mod leases;
mod messages;
mod producers;
mod revocations;
mod servers;
mod settling;
mod settling_beside;
mod stops;
mod streams;

use super::scenario::Scenario;

/// Returns all scenarios in the order of their table.
pub(crate) fn all() -> Vec<Scenario> {
    let subjects = [
        settling::SCENARIOS,
        settling_beside::SCENARIOS,
        leases::SCENARIOS,
        handlers::SCENARIOS,
        stops::SCENARIOS,
        producers::SCENARIOS,
        streams::SCENARIOS,
        servers::SCENARIOS,
        revocations::SCENARIOS,
        messages::SCENARIOS,
    ];
    subjects.concat()
}

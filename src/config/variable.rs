//! Variables with the prefix `RINGQ_`: those of the settings, and others.

use std::collections::BTreeSet;

use super::keys::KEYS;
use super::nearest::nearest;

/// Variables that client commands read.
pub(super) const CLIENT: [&str; 9] = [
    "RINGQ_SERVER",
    "RINGQ_TOKEN_FILE",
    "RINGQ_TOKEN",
    "RINGQ_ALLOW_PLAINTEXT_TOKEN",
    "RINGQ_CA",
    "RINGQ_CERT",
    "RINGQ_KEY",
    "RINGQ_CONTEXT",
    "RINGQ_CONTEXTS",
];

/// Variables that `ringq work --exec` sets for its command, and the binary that examples and benches are to use.
const OTHERS: [&str; 8] = [
    "RINGQ_BIN",
    "RINGQ_TOPIC",
    "RINGQ_ID",
    "RINGQ_ATTEMPT",
    "RINGQ_DELIVERY",
    "RINGQ_RECEIPT",
    "RINGQ_DEADLINE",
    "RINGQ_BATCH",
];

/// Variables that the workers and producers in `examples` read; a user may export them for both.
const EXAMPLES: [&str; 11] = [
    "RINGQ_HTTP",
    "RINGQ_TOPICS",
    "RINGQ_WORKER_ID",
    "RINGQ_CREDIT",
    "RINGQ_CONCURRENCY",
    "RINGQ_LEASE",
    "RINGQ_CALL_TIMEOUT",
    "RINGQ_GRACE",
    "RINGQ_LEDGER",
    "RINGQ_PREFIX",
    "RINGQ_PAYLOAD",
];

/// Returns whether a variable is not one of the server. Kubernetes gives every pod the addresses of the services
/// around it, so a service called `ringq` adds `RINGQ_SERVICE_HOST`, `RINGQ_PORT=tcp://…`, `RINGQ_PORT_7700_TCP_ADDR`
/// and more.
pub(super) fn is_foreign(name: &str, value: &str) -> bool {
    let link = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    CLIENT.contains(&name)
        || OTHERS.contains(&name)
        || EXAMPLES.contains(&name)
        || name.starts_with("RINGQ_HEADER_")
        || name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.contains("_PORT") && link)
        || ["_TCP_", "_UDP_", "_SCTP_"].iter().any(|protocol| name.contains(protocol))
}

/// Returns error texts for those of `variables` that neither a server nor a client command reads, for users of a
/// client command.
pub(super) fn unknown_variables(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let settings = settings();
    let ours =
        variables.filter(|(name, value)| name.starts_with("RINGQ_") && !is_foreign(name, value));
    let names = ours.map(|(name, _)| name).filter(|name| !settings.contains(name));
    // The environment has no order; the messages need one.
    let names: BTreeSet<String> = names.collect();
    let known = || CLIENT.into_iter().chain(settings.iter().map(String::as_str));
    let problem = |name: &String| match nearest(name, known()) {
        Some(known) => format!("unknown variable {name}; did you mean {known}?"),
        None => format!("unknown variable {name}; commands read {}", CLIENT.join(", ")),
    };
    names.iter().map(problem).collect()
}

/// Returns the variables of all settings.
pub(super) fn settings() -> Vec<String> {
    KEYS.into_iter().chain(["config", "shards"]).map(variable).collect()
}

/// Returns the variable of a key.
pub(super) fn variable(key: &str) -> String {
    format!("RINGQ_{}", key.to_uppercase())
}

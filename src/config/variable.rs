//! Variables with our prefix that are no settings.

/// Those that client commands read.
pub(super) const CLIENT: [&str; 2] = ["RINGQ_SERVER", "RINGQ_TOKEN"];

/// Those that `ringq work --exec` sets for its command, and the binary that examples and benches are to
/// use.
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

/// Whether it is none of the server's. Kubernetes gives every pod the addresses of the services around
/// it, so a service called `ringq` brings `RINGQ_SERVICE_HOST`, `RINGQ_PORT=tcp://…`,
/// `RINGQ_PORT_7700_TCP_ADDR` and more.
pub(super) fn is_foreign(name: &str, value: &str) -> bool {
    let link = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    CLIENT.contains(&name)
        || OTHERS.contains(&name)
        || name.starts_with("RINGQ_HEADER_")
        || name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.contains("_PORT") && link)
        || ["_TCP_", "_UDP_", "_SCTP_"].iter().any(|protocol| name.contains(protocol))
}

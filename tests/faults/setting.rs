//! Settings from the environment.

/// Reads a number from the environment.
pub(crate) fn number(name: &str, default: u32) -> u32 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Returns the seed of all random choices: `RINGQ_SEED`, or a new one.
pub(crate) fn seed() -> u64 {
    let value = std::env::var("RINGQ_SEED").ok();
    value.map_or_else(rand::random, |value| value.parse().expect("RINGQ_SEED is no number"))
}

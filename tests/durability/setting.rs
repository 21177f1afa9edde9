//! What the environment says, and what the machine offers.

use std::net::TcpListener;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail};
use rand::Rng as _;

/// Rigs load the whole machine: never two at once.
static RIG: Mutex<()> = Mutex::new(());

/// Below the ports that the kernel gives to connections: while the server is down, a client that
/// connects from the server's own port would reach itself and keep the port.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// Held by a test that drives a server.
pub(crate) fn one_rig_at_a_time() -> MutexGuard<'static, ()> {
    RIG.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number from the environment.
pub(crate) fn number(name: &str, default: u32) -> u32 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// The seed of all random choices: `RINGQ_SEED`, or a new one.
pub(crate) fn seed() -> u64 {
    let value = std::env::var("RINGQ_SEED").ok();
    value.map_or_else(rand::random, |value| value.parse().expect("RINGQ_SEED is no number"))
}

/// Whether a missing tool is an error.
pub(crate) fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// A loopback address that is free now and that no outgoing connection will take.
pub(crate) fn free_address() -> Result<String> {
    for _ in 0..100 {
        let address = format!("127.0.0.1:{}", rand::rng().random_range(PORTS));
        if TcpListener::bind(&address).is_ok() {
            return Ok(address);
        }
    }
    bail!("no free port in {PORTS:?}")
}

//! Ports of this machine for servers that are started again on the port they had.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Mutex;

use rand::Rng as _;

/// Those that were given away.
static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// A port that is free, below those of outgoing connections, and that no other test gets: whoever has it may leave it
/// for a while.
pub(crate) fn free_port() -> u16 {
    let mut taken = TAKEN.lock().unwrap();
    let taken = taken.get_or_insert_default();
    loop {
        let port = rand::rng().random_range(18_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && taken.insert(port) {
            return port;
        }
    }
}

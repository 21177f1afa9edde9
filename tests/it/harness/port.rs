//! Ports of this machine for servers that restart on the port that they had.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::Mutex;

use rand::Rng as _;

/// Ports that were returned by [`free_port`].
static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);

/// Returns a free port below the range of outgoing connections that no other test gets: its server may leave it
/// unused for a while.
pub(crate) fn free_port() -> u16 {
    let mut taken = TAKEN.lock().unwrap();
    let taken = taken.get_or_insert_default();
    loop {
        let port = rand::rng().random_range(18_000..32_000);
        // In this order: binding the port of another test, only to look, would keep its server from binding it.
        if taken.insert(port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

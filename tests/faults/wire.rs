//! A way to Redis that loses packets, so that kernels repeat them: each Redis has an address of its own in a network
//! namespace behind a router in another one, which forwards nothing to an address while it is cut off.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use crate::harness::{Place, in_ci};

/// Subnets of this process's wires: one after the other.
static WIRES: AtomicU8 = AtomicU8::new(0);
/// The first address behind the router.
const FIRST: usize = 130;

/// A router and the addresses behind it. Dropping it removes both.
pub(crate) struct Wire {
    router: String,
    far: String,
    /// The first three bytes of all addresses.
    net: String,
}

// === impl Wire ===

impl Wire {
    /// Creates a wire to this number of addresses; `None` without root or `ip`, which with CI=true is an error.
    pub(crate) fn start(addresses: usize) -> Option<Wire> {
        let (pid, number) = (std::process::id(), WIRES.fetch_add(1, Relaxed));
        let (router, far) = (format!("ringq-r{pid}-{number}"), format!("ringq-b{pid}-{number}"));
        // From the range that is reserved for tests of networks (RFC 2544).
        let subnet = (pid + 101 * u32::from(number)) % 512;
        let net = format!("198.{}.{}", 18 + subnet / 256, subnet % 256);
        let wire = Wire { router, far, net };
        let made = wire.make(addresses);
        assert!(made || !in_ci(), "network namespaces are required with CI=true");
        if !made {
            println!("skipped: network namespaces need root and ip");
            return None;
        }
        Some(wire)
    }

    fn make(&self, addresses: usize) -> bool {
        let Wire { router, far, net } = self;
        // A device name has at most 15 bytes.
        let near = format!("rq{}", router.trim_start_matches("ringq-r").replace('-', "x"));
        let own: String = (FIRST..FIRST + addresses)
            .map(|last| format!("ip -n {far} addr add {net}.{last}/25 dev b0\n"))
            .collect();
        run(&format!(
            "set -e
            ip netns add {router}; ip netns add {far}
            ip link add {near} type veth peer name r0 netns {router}
            ip -n {router} link add r1 type veth peer name b0 netns {far}
            ip addr add {net}.1/30 dev {near}; ip link set {near} up
            ip -n {router} addr add {net}.2/30 dev r0; ip -n {router} link set r0 up
            ip -n {router} addr add {net}.129/25 dev r1; ip -n {router} link set r1 up
            ip netns exec {router} sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
            {own}
            ip -n {far} link set lo up; ip -n {far} link set b0 up
            ip -n {far} route add default via {net}.129
            ip route add {net}.128/25 via {net}.2"
        ))
    }

    /// Returns the address at which a server listens to be reached by this wire.
    pub(crate) fn place(&self, number: usize) -> Place {
        Place::in_namespace(&self.far, self.address(number))
    }

    /// Drops all packets to that address from now on.
    pub(crate) fn cut(&self, number: usize) {
        let (router, address) = (&self.router, self.address(number));
        assert!(run(&format!("ip -n {router} route add blackhole {address}/32")));
    }

    /// Delivers packets to it again from now on, also those that kernels repeat.
    pub(crate) fn join(&self, number: usize) {
        let (router, address) = (&self.router, self.address(number));
        assert!(run(&format!("ip -n {router} route del blackhole {address}/32")));
    }

    fn address(&self, number: usize) -> String {
        format!("{}.{}", self.net, FIRST + number)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        let Wire { router, far, .. } = self;
        run(&format!("ip netns del {router}; ip netns del {far}"));
    }
}

fn run(script: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

//! Addresses of servers as people write them.

use std::net::Ipv6Addr;

/// Address of the server, by default.
pub(super) const SERVER_DEFAULT: &str = "http://127.0.0.1:7700";
/// Port of a server that is named without one.
pub(super) const PORT_DEFAULT: u16 = 7700;

/// Completes each of several addresses, separated by commas.
pub(in crate::cli) fn urls(servers: &str) -> String {
    let parts: Vec<_> = servers.split(',').map(str::trim).collect();
    let is_list = parts.len() > 1;
    // An empty entry of a list stays one, which the client refuses.
    let complete = |part: &&str| if is_list && part.is_empty() { String::new() } else { url(part) };
    parts.iter().map(complete).collect::<Vec<_>>().join(",")
}

/// Completes an address: a host without a scheme gets ringq's port, not that of HTTP; a port without a host is one of
/// this machine.
fn url(server: &str) -> String {
    if server.contains("://") {
        return server.to_owned();
    }
    if server.parse::<Ipv6Addr>().is_ok() {
        return format!("http://[{server}]:{PORT_DEFAULT}");
    }
    if server.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok()) {
        return format!("http://127.0.0.1{server}");
    }
    let is_alone = !server.contains(':') || (server.starts_with('[') && server.ends_with(']'));
    if is_alone && !server.is_empty() {
        format!("http://{server}:{PORT_DEFAULT}")
    } else {
        format!("http://{server}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_port_gets_the_default_port() {
        for (server, want) in [
            ("localhost", "http://localhost:7700"),
            ("localhost:1", "http://localhost:1"),
            (":7701", "http://127.0.0.1:7701"),
            ("::1", "http://[::1]:7700"),
            ("[::1]", "http://[::1]:7700"),
            ("[::1]:1", "http://[::1]:1"),
            ("https://a", "https://a"),
            ("", "http://"),
        ] {
            assert_eq!(url(server), want, "{server:?}");
        }
    }

    #[test]
    fn each_address_of_a_list_is_completed() {
        let want = "http://a:7700,http://127.0.0.1:7701,https://b";
        assert_eq!(urls("a, :7701 ,https://b"), want);
        assert_eq!((urls("a,"), urls("")), ("http://a:7700,".to_owned(), "http://".to_owned()));
    }
}

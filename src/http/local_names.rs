//! Names by which the pages of a server on a loopback address may be requested.
//!
//! Such a server trusts the programs of its machine, and a browser is one of them that runs the scripts of any site. A page
//! whose host name is pointed at 127.0.0.1 after it was loaded (DNS rebinding) may read what it gets from there, as from
//! its own site. The browser names that host in the request; a program of the machine uses an address or `localhost`.
//! Calls as JSON do not come here: a browser sends `Origin` with each, for which they are refused.

use std::net::IpAddr;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};

/// Answer to a request for another name.
const REFUSED: &str = "this server listens on a loopback address and serves its pages for an address or localhost only, not for this Host: a web page could read them else; set the header Host, or http_listen to another address\n";

/// Serves the pages of `router` for local names only.
pub(super) fn only(router: Router) -> Router {
    router.layer(middleware::from_fn(check))
}

async fn check(request: Request, next: Next) -> Response {
    // A balancer may probe through a proxy that keeps its own name, and probes show nothing.
    let is_probe = matches!(request.uri().path(), "/healthz" | "/readyz");
    let is_page = matches!(*request.method(), Method::GET | Method::HEAD) && !is_probe;
    if is_page && !is_local(request.uri(), request.headers()) {
        return (StatusCode::FORBIDDEN, REFUSED).into_response();
    }
    next.run(request).await
}

/// Returns whether a request names its host by an address, as `localhost`, or not at all: a browser always does.
fn is_local(uri: &Uri, headers: &HeaderMap) -> bool {
    let given = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("?"));
    uri.authority().map(|authority| authority.as_str()).into_iter().chain(given).all(is_local_name)
}

fn is_local_name(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_local() {
        for (host, wanted) in [
            ("localhost", true),
            ("LocalHost:7701", true),
            ("localhost.", true),
            ("ringq.localhost:7701", true),
            ("127.0.0.1", true),
            ("127.0.0.1:7701", true),
            ("10.1.2.3:7701", true),
            ("[::1]", true),
            ("[::1]:7701", true),
            ("[fe80::1]:7701", true),
            ("evil.example", false),
            ("evil.example:7701", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("[evil.example]", false),
            ("evillocalhost", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            assert!(is_local(&Uri::from_static("/metrics"), &headers), "no name");
            headers.insert(header::HOST, host.parse().unwrap());
            assert_eq!(is_local(&Uri::from_static("/metrics"), &headers), wanted, "{host}");
            headers.append(header::HOST, "evil.example".parse().unwrap());
            assert!(!is_local(&Uri::from_static("/metrics"), &headers), "each name counts");
        }
        assert!(!is_local(&Uri::from_static("http://evil.example/metrics"), &HeaderMap::new()));
    }
}

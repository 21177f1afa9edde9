use std::net::SocketAddr;
use std::path::Path;

use super::{Ran, command, finish, ringq};
use crate::client::guarded::Guarded;
use crate::harness::{Certificates, Server, TlsProxy, Valid, http_get};

/// Runs `ringq` with this server, these variables and arguments.
async fn on(server: &str, variables: &[(&str, &str)], args: &[&str]) -> Ran {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut command = command(nowhere, args);
    command.env("RINGQ_SERVER", server).envs(variables.iter().copied());
    finish(command.spawn().unwrap()).await
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test]
async fn a_server_with_tls_is_used_by_flags_or_variables() {
    let Some(files) = Certificates::make() else { return };
    let server = Server::start().await;
    let certificate = (&*files.cert, &*files.key);
    let proxy = TlsProxy::start(server.grpc, certificate, Some(&files.ca)).await;
    let [ca, cert, key] = [&files.ca, &files.cert, &files.key].map(|path| text(path));
    let flags = ["enqueue", "t", "x", "--ca", ca, "--cert", cert, "--key", key];
    on(&proxy.url(), &[], &flags).await.ok();
    let variables = [("RINGQ_CA", ca), ("RINGQ_CERT", cert), ("RINGQ_KEY", key)];
    on(&proxy.url(), &variables, &["info"]).await.ok();
    let worked = ["work", "t", "--exec", "cat", "--max-jobs", "1"];
    let mut work = command(server.grpc, &worked);
    work.env("RINGQ_SERVER", proxy.url()).envs(variables).env("PATH", "/usr/bin:/bin");
    let done = finish(work.spawn().unwrap()).await;
    assert_eq!((done.code, done.stdout.as_str()), (0, "x"), "{}", done.stderr);
}

/// One line for the problem, and one for what to change.
#[tokio::test]
async fn mistakes_with_tls_lead_to_the_flag_to_change() {
    let Some(files) = Certificates::make() else { return };
    let server = Server::start().await;
    let certificate = (&*files.cert, &*files.key);
    let proxy = TlsProxy::start(server.grpc, certificate, None).await;
    let strict = TlsProxy::start(server.grpc, certificate, Some(&files.ca)).await;
    let (old, old_key) = files.sign("old", "DNS:localhost", Valid::In2020);
    let expired = TlsProxy::start(server.grpc, (&old, &old_key), None).await;
    let other = Certificates::make().unwrap();
    let by_address = format!("https://127.0.0.1:{}", proxy.port);
    let to_tls = format!("http://localhost:{}", proxy.port);
    let to_plain = format!("https://{}", server.grpc);
    let ca = ["--ca", text(&files.ca)];
    let others = ["--cert", text(&other.cert), "--key", text(&other.key)];
    let with_others = [&ca[..], &others].concat();
    for (url, flags, problem, hint) in [
        (proxy.url(), &[][..], "is not signed by a trusted authority", "--ca or RINGQ_CA"),
        (proxy.url(), &["--ca", text(&other.ca)], "not signed by a trusted", "--ca or RINGQ_CA"),
        (by_address, &ca, "not for 127.0.0.1; it is for localhost", "--server or RINGQ_SERVER"),
        (expired.url(), &ca, "has expired, ", "the server needs a new one"),
        (to_tls, &[], "the server uses TLS; try https://", "write https:// in place of http://"),
        (to_plain, &ca, "does not use TLS; try http://", "write http:// in place of https://"),
        (strict.url(), &ca, "requires a client certificate", "--cert and --key"),
        (strict.url(), &with_others, "rejected the client certificate", "--cert and --key"),
    ] {
        let args = [&["topic", "list"], flags].concat();
        let ran = on(&url, &[], &args).await.fails(4, &[&url, problem, hint]);
        assert_eq!(ran.stderr.lines().count(), 2, "{}", ran.stderr);
        assert_eq!(ran.stdout, "");
    }
    // A silent worker would seem to wait for jobs.
    let args = ["work", "t", "--exec", "cat"];
    let mut work = command(server.grpc, &args);
    work.env("RINGQ_SERVER", proxy.url()).env("PATH", "/usr/bin:/bin");
    let ran = finish(work.spawn().unwrap()).await;
    ran.fails(4, &["cannot take jobs", "not signed by a trusted authority", "--ca or RINGQ_CA"]);
}

#[tokio::test]
async fn files_and_flags_that_do_not_fit_are_usage_errors() {
    let Some(files) = Certificates::make() else { return };
    let server = "https://localhost:1";
    let [ca, cert, key] = [&files.ca, &files.cert, &files.key].map(|path| text(path));
    for (server, variables, flags, texts) in [
        (server, &[][..], &["--ca", "/nothing"][..], &["cannot be read", "--ca or RINGQ_CA"][..]),
        (server, &[("RINGQ_CA", key)], &[], &["has no certificate", "--ca or RINGQ_CA"]),
        (server, &[], &["--cert", key, "--key", key], &["no certificate", "--cert or RINGQ_CERT"]),
        (server, &[], &["--cert", cert, "--key", cert], &["private key", "--key or RINGQ_KEY"]),
        (server, &[], &["--cert", cert], &["--key"]),
        (server, &[("RINGQ_CERT", cert)], &[], &["RINGQ_CERT is set without RINGQ_KEY"]),
        (server, &[], &["--token", "t", "--token-file", ca], &["--token-file"]),
        (server, &[("RINGQ_TOKEN", "t"), ("RINGQ_TOKEN_FILE", "t")], &[], &["are both set"]),
        (server, &[], &["--token-file", "/no"], &["\"/no\" cannot", "--token-file or RINGQ_TOKEN"]),
        (":1", &[], &["--ca", ca], &["http://127.0.0.1:1 is without TLS", "--ca or RINGQ_CA"]),
        (":1", &[], &["--cert", cert, "--key", key], &["is without TLS", "--cert or RINGQ_CERT"]),
        (
            "http://queue",
            &[("RINGQ_TOKEN", "planted")],
            &[],
            &["to http://queue without encryption", "https://", "--allow-plaintext-token"],
        ),
    ] {
        let args = [&["topic", "list"], flags].concat();
        let ran = on(server, variables, &args).await.fails(2, texts);
        assert!(!ran.stderr.contains("planted"), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn a_refused_token_is_reported_with_its_source() {
    let guarded = Guarded::start("planted-good").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "planted-good\n").unwrap();
    let server = format!("http://{}", guarded.address);
    let call = ["enqueue", "t", "x"];
    let with_file = [&call[..], &["--token-file", text(&file)]].concat();
    for (variables, args) in [
        (&[][..], &with_file[..]),
        (&[("RINGQ_TOKEN_FILE", text(&file))], &call),
        (&[("RINGQ_TOKEN", "planted-good")], &call),
        // A flag wins.
        (&[("RINGQ_TOKEN", "planted-bad")], &with_file),
        (&[("RINGQ_TOKEN_FILE", "/nothing")], &[&call[..], &["--token", "planted-good"]].concat()),
    ] {
        on(&server, variables, args).await.ok();
    }
    for (variables, texts) in [
        (&[][..], &["the call has no token", "--token-file, RINGQ_TOKEN_FILE or RINGQ_TOKEN"][..]),
        (&[("RINGQ_TOKEN", "planted-bad")], &["not known", "set by --token or RINGQ_TOKEN"]),
        (&[("RINGQ_TOKEN", "viewer")], &["may not call Enqueue", "gives rights to the identity"]),
    ] {
        let ran = on(&server, variables, &call).await.fails(1, texts);
        assert_eq!(ran.stderr.lines().count(), 2, "{}", ran.stderr);
        assert!(!ran.stderr.contains("planted"), "{}", ran.stderr);
    }
    let wrong = dir.path().join("wrong");
    std::fs::write(&wrong, "planted-bad").unwrap();
    let ran = on(&server, &[("RINGQ_TOKEN_FILE", text(&wrong))], &call).await;
    ran.fails(1, &["not known", "set by --token-file or RINGQ_TOKEN_FILE"]);
}

/// A server without identities ignores tokens.
#[tokio::test]
async fn a_token_in_plaintext_needs_permission_beyond_this_machine() {
    let server = Server::start().await;
    let call = ["info", "--token", "planted"];
    ringq(&server, &call).await.ok();
    let port = server.grpc.port();
    // The unspecified address leads to this machine, and is none of loopback.
    let away = format!("http://0.0.0.0:{port}");
    on(&away, &[], &call).await.fails(2, &["without encryption"]);
    let allowed = ["info", "--token", "planted", "--allow-plaintext-token"];
    on(&away, &[], &allowed).await.ok();
    for (value, code) in [("true", 0), ("1", 0), ("false", 2), ("yes", 2)] {
        let variables = [("RINGQ_ALLOW_PLAINTEXT_TOKEN", value)];
        assert_eq!(on(&away, &variables, &call).await.code, code, "{value}");
    }
    let (_, metrics) = http_get(server.http, "/metrics").await;
    assert!(!metrics.contains("planted") && !server.log().contains("planted"));
}

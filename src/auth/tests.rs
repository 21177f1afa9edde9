//! Tests of decisions and of files of identities.

use super::identity_file;
use std::sync::Arc;

use super::*;
use crate::clock::Clock;
use crate::domain::{TopicName, TopicPattern};
use crate::metrics::Metrics;
use crate::rpc::Rpc;
use crate::tls::PeerCertificate;

/// Reads the identities of a file.
fn identities(text: &str) -> Result<Identities, Vec<String>> {
    let found = identity_file::read(&toml::from_str(text).unwrap(), variables)?;
    Identities::new(found, vec![("issuer[0]".to_owned(), jwt::tests::issuer("k"))])
}

fn variables(name: &str) -> Option<String> {
    [("LONG", "a token of the user's own"), ("OWN", "0123456789abcdef"), ("SHORT", "secret")]
        .into_iter()
        .find_map(|(known, value)| (known == name).then(|| value.to_owned()))
}

/// Returns an identity with these lines.
fn identity(lines: &str) -> Identity {
    let all = identities(&format!("[[identity]]\nname = 'a'\n{lines}")).unwrap();
    (**all.get("a").unwrap()).clone()
}

fn topic(name: &str) -> TopicName {
    TopicName::try_new(name).unwrap()
}

fn touches(identity: &Identity, rpc: Rpc, name: &str) -> bool {
    identity.may_call(rpc).is_ok() && identity.may_touch(rpc, &topic(name)).is_ok()
}

/// Returns the allowed part of a pattern.
fn part(identity: &Identity, rpc: Rpc, pattern: &str) -> Vec<String> {
    let parts = identity.allowed_part(rpc, &TopicPattern::parse(pattern).unwrap());
    parts.iter().map(ToString::to_string).collect()
}

#[test]
fn an_identity_without_a_role_may_do_nothing_but_ask_what_the_server_is() {
    let none = identity("");
    for rpc in Rpc::ALL {
        assert_eq!(none.may_call(rpc).is_ok(), rpc == Rpc::GetServerInfo, "{rpc:?}");
    }
}

/// Each role may call what DESIGN gives it; a new RPC has to be added here on purpose.
#[test]
fn roles_have_their_calls() {
    let of = |role: &str| -> Vec<&str> {
        let identity = identity(&format!("{role} = ['*']"));
        Rpc::ALL.into_iter().filter(|rpc| identity.may_call(*rpc).is_ok()).map(Rpc::name).collect()
    };
    let producer = ["BatchEnqueue", "Delete", "Enqueue", "Get", "GetServerInfo", "Reschedule"];
    let worker = ["Ack", "Extend", "GetServerInfo", "Nack", "Pull", "Stream"];
    let viewer = [
        "ExplainJob",
        "Get",
        "GetMetricSpec",
        "GetMetrics",
        "GetServerInfo",
        "GetTopic",
        "GetTopicStats",
        "IsActive",
        "ListGroups",
        "ListJobs",
        "ListShards",
        "ListTopics",
        "ListWorkers",
        "StreamIsActive",
    ];
    let more = [
        "CreateTopic",
        "Delete",
        "DeleteTopic",
        "PauseGroup",
        "PauseTopic",
        "PurgeTopic",
        "RedriveJobs",
        "Reschedule",
        "ResumeGroup",
        "ResumeTopic",
        "SetShardState",
        "UpdateTopic",
    ];
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    assert_eq!(sorted(of("producer")), producer);
    assert_eq!(sorted(of("worker")), worker);
    assert_eq!(sorted(of("viewer")), viewer);
    assert_eq!(sorted(of("operator")), sorted([&viewer[..], &more].concat()));
}

#[test]
fn patterns_and_namespaces_both_have_to_match() {
    let shop = identity("namespaces = ['shop.']\nproducer = ['*']\nworker = ['shop.mail', 'x.*']");
    assert!(touches(&shop, Rpc::Enqueue, "shop.orders"));
    assert!(touches(&shop, Rpc::Ack, "shop.mail"));
    for (rpc, name) in [
        (Rpc::Enqueue, "shopping"),
        (Rpc::Ack, "shop.orders"),
        (Rpc::Ack, "x.a"),
        (Rpc::Get, "shop"),
    ] {
        assert!(!touches(&shop, rpc, name), "{rpc:?} {name}");
    }
    assert_eq!(shop.may_touch(Rpc::Get, &topic("x.a")), Err(Denial::OutsideNamespaces));
    assert_eq!(shop.may_touch(Rpc::Ack, &topic("shop.b")), Err(Denial::NoPattern(Rpc::Ack)));
    assert_eq!(shop.may_call(Rpc::ListJobs), Err(Denial::NoRole(Rpc::ListJobs)));
}

#[test]
fn of_a_glob_the_allowed_part_is_meant() {
    let worker = identity("namespaces = ['a.', 'b.']\nworker = ['a.x*', 'b.*', 'b.y', 'c.*']");
    assert_eq!(part(&worker, Rpc::Stream, "*"), ["a.x*", "b.*"]);
    assert_eq!(part(&worker, Rpc::Stream, "a.*"), ["a.x*"]);
    assert_eq!(part(&worker, Rpc::Stream, "b.y.z*"), ["b.y.z*"]);
    assert_eq!(part(&worker, Rpc::Stream, "b.y"), ["b.y"]);
    for nothing in ["c.*", "c", "a.y*", "bb*"] {
        assert!(part(&worker, Rpc::Stream, nothing).is_empty(), "{nothing}");
    }
    assert!(part(&worker, Rpc::ListWorkers, "*").is_empty(), "another role");
    let all = identity("worker = ['*']");
    assert_eq!(part(&all, Rpc::Stream, "*"), ["*"]);
}

#[test]
fn the_whole_server_is_for_identities_without_bounds() {
    for (lines, may) in [
        ("operator = ['*']", true),
        ("operator = ['a', '*']", true),
        ("operator = ['a.*']", false),
        ("viewer = ['*']", false),
        ("operator = ['*']\nnamespaces = ['a.']", false),
    ] {
        let identity = identity(lines);
        let found = identity.may_call(Rpc::SetShardState);
        assert_eq!(found.is_ok(), may, "{lines}: {found:?}");
    }
}

#[test]
fn payloads_are_a_right_of_their_own() {
    let operator = identity("operator = ['*']\npayloads = ['a.*']\nnamespaces = ['a.', 'b.']");
    let reads = ["a.x", "b.x", "c.x"].map(|name| operator.may_read_payloads(&topic(name)));
    assert_eq!(reads, [true, false, false]);
}

#[test]
fn mistakes_are_reported_with_their_place_and_without_what_may_be_a_token() {
    let hash = token::TokenHash::of("t").to_string();
    for (lines, wanted) in [
        ("tokens = ['rq_secret']", "identity[0] (a).tokens[0]: must be sha256: and 64"),
        ("tokens = ['env:NONE']", "identity[0] (a).tokens[0]: the variable NONE is not set"),
        ("tokens = ['env:SHORT']", "identity[0] (a).tokens[0]: SHORT has no token of at least 16"),
        ("tokens = ['env:LONG']", "identity[0] (a).tokens[0]: LONG has no token of at least 16"),
        ("tokens = ['file:/no/file']", "identity[0] (a).tokens[0]: cannot read /no/file: "),
        ("tokens = 'rq_secret'", "identity[0] (a).tokens: must be a list of texts"),
        ("token = ['rq_secret']", "identity[0] (a).token: there is no such key"),
        ("producer = ['a*b']", "identity[0] (a).producer[0]: '*' is not allowed"),
        ("producer = '*'", "identity[0] (a).producer: must be a list"),
        ("namespaces = ['shop']", "identity[0] (a).namespaces[0]: must be the beginning"),
        ("namespaces = ['shop.*']", "identity[0] (a).namespaces[0]: must be the beginning"),
        ("certificates = ['']", "identity[0] (a).certificates[0]: must be a URI"),
        ("jwt = ['x']", "identity[0] (a).jwt[0]: must be tables like"),
        ("jwt = [{ issuer = 'k' }]", "identity[0] (a).jwt[0]: must be tables like"),
        (&format!("tokens = ['{hash}', '{hash}', '{hash}']"), "identity[0] (a).tokens: has more"),
    ] {
        let problems = identities(&format!("[[identity]]\nname = 'a'\n{lines}")).unwrap_err();
        assert!(problems[0].starts_with(wanted), "{problems:?}");
        assert!(!problems.concat().contains("secret"), "{problems:?}");
    }
    assert!(identities("identity = 1").unwrap_err()[0].starts_with("identity: is not written as"));
    assert!(
        identities("[[identity]]").unwrap_err()[0].starts_with("identity[0].name: must be 1 to 64")
    );
}

#[test]
fn tokens_are_named_by_hash_by_variable_and_by_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "fedcba9876543210\n").unwrap();
    let found = identity(&format!("tokens = ['env:OWN', 'file:{}']", file.display()));
    let wanted = ["0123456789abcdef", "fedcba9876543210"].map(token::TokenHash::of);
    assert_eq!(found.tokens, wanted);
}

#[test]
fn two_identities_share_nothing_that_proves_them() {
    let hash = token::TokenHash::of("t");
    for line in [
        format!("tokens = ['{hash}']"),
        "certificates = ['spiffe://x/a']".to_owned(),
        "jwt = [{ issuer = 'k', subject = 's' }]".to_owned(),
    ] {
        let text = format!("[[identity]]\nname='a'\n{line}\n[[identity]]\nname='b'\n{line}");
        let problems = identities(&text).unwrap_err();
        assert!(problems[0].contains("is also that of the identity a"), "{problems:?}");
    }
    let twice = identities("[[identity]]\nname='a'\n[[identity]]\nname='a'").unwrap_err();
    assert!(twice[0].contains("its name is also that"), "{twice:?}");
}

#[test]
fn callers_prove_their_identity_by_token_or_certificate() {
    let text = |name: &str, token: &str| {
        format!(
            "[[identity]]\nname = '{name}'\ntokens = ['{}']\ncertificates = ['{name}.local']\n",
            token::TokenHash::of(token)
        )
    };
    let all = identities(&(text("a", "ta") + &text("b", "tb"))).unwrap();
    let authenticator = Authenticator::new(all, Clock::system(), &Metrics::new());
    let plain = authenticator.connection(None);
    let name = |header: Option<&str>| {
        plain.caller(header.map(str::as_bytes)).map(|caller| caller.to_string())
    };
    assert_eq!(name(Some("Bearer ta")), Ok("a".to_owned()));
    assert_eq!(name(Some("bearer  tb")), Ok("b".to_owned()), "not that of the call before");
    assert_eq!(name(Some("Bearer tc")), Err(Unauthenticated::UnknownToken));
    assert_eq!(name(Some("Bearer ")), Err(Unauthenticated::NotBearer));
    assert_eq!(name(Some("Basic ta")), Err(Unauthenticated::NotBearer));
    assert_eq!(name(None), Err(Unauthenticated::Missing));
    let certificate = |names: &[&str]| {
        let mut certificate = PeerCertificate::default();
        certificate.dns = names.iter().map(|name| (*name).to_owned()).collect();
        authenticator.connection(Some(Arc::new(certificate)))
    };
    let certified = certificate(&["x", "b.local"]);
    assert_eq!(certified.caller(None).unwrap().to_string(), "b");
    assert_eq!(certified.caller(Some(b"Bearer ta")).unwrap().to_string(), "a");
    let unknown = certificate(&["x"]);
    assert_eq!(unknown.caller(None).unwrap_err(), Unauthenticated::UnknownCertificate);

    authenticator.replace(identities(&text("b", "new")).unwrap());
    assert_eq!(name(Some("Bearer tb")), Err(Unauthenticated::UnknownToken), "replaced at once");
    assert_eq!(name(Some("Bearer new")), Ok("b".to_owned()));
    let off = Authenticator::off().connection(None);
    assert!(off.caller(Some(b"nonsense")).unwrap().identity().is_none());
}

#[tokio::test]
async fn a_caller_is_notified_of_a_change_of_its_own_rights_only() {
    use futures::FutureExt as _;

    let two = "[[identity]]\nname='a'\nworker=['x']\n[[identity]]\nname='b'\n";
    let token = format!("tokens = ['{}']\n", token::TokenHash::of("t"));
    let file = |rest: &str| identities(&format!("{two}{token}{rest}")).unwrap();
    let authenticator = Authenticator::new(file(""), Clock::system(), &Metrics::new());
    let caller = authenticator.connection(None).caller(Some(b"Bearer t")).unwrap();
    let mut changed = Box::pin(authenticator.ended(&caller));
    authenticator.replace(file("[[identity]]\nname='c'"));
    assert!((&mut changed).now_or_never().is_none(), "another identity was added");
    authenticator.replace(file("worker=['y']"));
    assert!(changed.now_or_never().is_some());
}

/// A connection is served only as long as its client certificate is valid, for each caller on it, also where everyone may
/// call.
#[tokio::test]
async fn calls_and_streams_end_with_the_certificate_of_their_connection() {
    use futures::FutureExt as _;

    let text = format!(
        "[[identity]]\nname='a'\ncertificates=['a.local']\ntokens=['{}']\n",
        token::TokenHash::of("t")
    );
    let all = identities(&text).unwrap();
    let on = Authenticator::new(all, Clock::system(), &Metrics::new());
    for (authenticator, header) in
        [(on.clone(), None), (on, Some(&b"Bearer t"[..])), (Authenticator::off(), None)]
    {
        let mut certificate = PeerCertificate::default();
        certificate.dns.push("a.local".to_owned());
        let certificate = Arc::new(certificate);
        let connection = authenticator.connection(Some(Arc::clone(&certificate)));
        let caller = connection.caller(header).unwrap();
        let mut ended = Box::pin(authenticator.ended(&caller));
        assert!((&mut ended).now_or_never().is_none());
        certificate.end();
        assert!(ended.now_or_never().is_some());
        assert_eq!(connection.caller(header).unwrap_err(), Unauthenticated::CertificateEnded);
        assert!(authenticator.connection(None).caller(header).is_ok() || header.is_none());
    }
}

#[test]
fn names_of_certificates_are_uris_or_dns_names() {
    let read = |name: &str| identities(&format!("[[identity]]\nname='a'\ncertificates=['{name}']"));
    for good in ["spiffe://example.org/worker", "worker.example", "*.example", "host"] {
        assert!(read(good).is_ok(), "{good}");
    }
    for bad in ["", "a b", "urn:worker", "a/b", "spiffe://a b", "10.0.0.1:80", "a@b"] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

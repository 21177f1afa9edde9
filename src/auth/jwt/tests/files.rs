//! `[[issuer]]` tables: mistakes and their places.

use super::*;

/// Returns the mistakes of a file with this text, which has a file with keys beside it.
fn mistakes(text: &str) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("jwks.json"), &jwks(&[TestKey::es256().jwk("a")]));
    write(&directory.path().join("empty.json"), "{\"keys\":[]}");
    let path = directory.path().join("identities.toml");
    write(&path, text);
    let problems = IdentitySource::new(path.clone(), |_| None).read().err().unwrap_or_default();
    let place = format!("{}: ", path.display());
    problems.into_iter().map(|text| text.strip_prefix(&place).unwrap_or(&text).to_owned()).collect()
}

fn table(lines: &str) -> String {
    format!("{lines}\n[[identity]]\nname = 'a'\n")
}

#[test]
fn mistakes_in_issuers_are_reported_with_their_place() {
    let good = "[[issuer]]\nname = 'k'\nissuer = 'i'\naudiences = ['x']\njwks_file = 'jwks.json'";
    assert_eq!(mistakes(&table(good)), [""; 0]);
    for (from, to, wanted) in [
        ("name = 'k'", "", "issuer[0].name: must be 1 to 64"),
        ("name = 'k'", "name = 'k k'", "issuer[0].name: must be 1 to 64"),
        ("issuer = 'i'", "", "issuer[0] (k).issuer: must be the claim"),
        ("issuer = 'i'", "issuer = ''", "issuer[0] (k).issuer: must be the claim"),
        ("audiences = ['x']", "", "issuer[0] (k).audiences: must be a list"),
        ("audiences = ['x']", "audiences = []", "issuer[0] (k).audiences: must be a list"),
        ("audiences = ['x']", "audiences = ['']", "issuer[0] (k).audiences: must be a list"),
        ("audiences = ['x']", "audiences = 'x'", "issuer[0] (k).audiences: must be a list"),
        ("jwks_file = 'jwks.json'", "", "issuer[0] (k).jwks_file: exactly one of"),
        ("jwks_file", "jwks_url = 'https://x'\njwks_file", "issuer[0] (k).jwks_file: exactly one"),
        ("jwks.json", "none.json", "issuer[0] (k).jwks_file: cannot read"),
        ("jwks.json", "", "issuer[0] (k).jwks_file: must be the path"),
        ("jwks_file", "leeway = '61s'\njwks_file", "issuer[0] (k).leeway: must be a duration"),
        ("jwks_file", "leeway = 30\njwks_file", "issuer[0] (k).leeway: must be a duration"),
        ("jwks_file", "algorithms = []\njwks_file", "issuer[0] (k).algorithms: must be a list"),
        ("jwks_file", "algorithms = ['HS256']\njwks_file", "issuer[0] (k).algorithms: must be"),
        ("jwks_file", "algorithms = ['none']\njwks_file", "issuer[0] (k).algorithms: must be"),
        ("jwks_file", "jwks_ca = 'x'\njwks_file", "issuer[0] (k).jwks_ca: is for jwks_url only"),
        ("jwks_file", "aud = 'x'\njwks_file", "issuer[0] (k).aud: there is no such key"),
        ("[[issuer]]", "[issuer]", "issuer: is not written as"),
        ("[[issuer]]", "[[issuers]]", "issuers: there is no such table"),
    ] {
        let found = mistakes(&table(&good.replacen(from, to, 1)));
        assert!(
            found.first().is_some_and(|found| found.starts_with(wanted)),
            "{wanted}: {found:?}"
        );
    }
    let empty = mistakes(&table(&good.replace("jwks.json", "empty.json")));
    assert!(empty[0].contains("empty.json has no usable key"), "{empty:?}");
    for (url, wanted) in [
        ("http://issuer.example/keys", "must begin with https://: over http"),
        ("http://127.0.0.1.example/keys", "must begin with https://: over http"),
        ("http://10.0.0.1/", "must begin with https://: over http"),
        ("ftp://x/", "must begin with https://"),
        ("https://user:secret@x/", "must have no user and no password"),
        ("/keys", "must be a URL such as"),
        ("", "is not a URL"),
        ("https://x y", "is not a URL"),
    ] {
        let found = mistakes(&table(
            &good.replace("jwks_file = 'jwks.json'", &format!("jwks_url = '{url}'")),
        ));
        let wanted = format!("issuer[0] (k).jwks_url: {wanted}");
        assert!(found.first().is_some_and(|found| found.starts_with(&wanted)), "{url}: {found:?}");
        assert!(!found.concat().contains("secret"), "{found:?}");
    }
    for url in [
        "https://x",
        "https://x:1/a?b=c",
        "http://127.9.9.9:1/",
        "http://localhost:1",
        "http://[::1]:1/x",
    ] {
        let good = good.replace("jwks_file = 'jwks.json'", &format!("jwks_url = '{url}'"));
        assert_eq!(mistakes(&table(&good)), [""; 0], "{url}");
    }
}

#[test]
fn issuers_have_names_of_their_own_and_identities_use_them() {
    let issuer = |name: &str, iss: &str| {
        format!(
            "[[issuer]]\nname = '{name}'\nissuer = '{iss}'\naudiences = ['x']\njwks_file = 'jwks.json'\n"
        )
    };
    let same_name = mistakes(&table(&(issuer("k", "a") + &issuer("k", "b"))));
    assert_eq!(same_name, ["issuer[1] (k).name: another issuer has the same name"]);
    let same_iss = mistakes(&table(&(issuer("k", "a") + &issuer("l", "a"))));
    assert_eq!(same_iss, ["issuer[1] (l).issuer: it is also that of the issuer k"]);
    let of = |name: &str| {
        table(&issuer("k", "a")) + &format!("jwt = [{{ issuer = '{name}', subject = 's' }}]")
    };
    assert_eq!(mistakes(&of("k")), [""; 0]);
    let unknown = mistakes(&of("x"));
    let text = "identity[0] (a).jwt: there is no [[issuer]] with the name \"x\"; there are: k";
    assert_eq!(unknown, [text]);
}

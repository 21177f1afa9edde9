//! Claims: issuer, audience, times, subject.

use serde_json::json;

use super::*;

fn world() -> (World, TestKey) {
    let key = TestKey::es256();
    (World::with_keys(&[key.jwk("a")]), key)
}

#[test]
fn issuer_audience_subject_and_end_are_required() {
    let (world, key) = world();
    for name in ["iss", "aud", "sub", "exp"] {
        for (value, is_type) in [(Value::Null, true), (json!({}), false), (json!([1]), false)] {
            let error = world.refusal(&signed(&key, "a", json!({ name: value })));
            let is_missing = error == JwtError::MissingClaim(name.to_owned());
            let is_malformed = matches!(error, JwtError::Malformed(_));
            assert!(is_missing || (is_malformed && !is_type), "{name} {value}: {error:?}");
        }
    }
    for exp in [json!("1"), json!(true), json!((NOW + LIFE).to_string())] {
        let error = world.refusal(&signed(&key, "a", json!({ "exp": exp })));
        assert!(matches!(error, JwtError::Malformed(_)), "{error:?}");
    }
    // A list of issuers is no issuer.
    let error = world.refusal(&signed(&key, "a", json!({ "iss": [ISS] })));
    assert_eq!(error, JwtError::Malformed("list of claims"));
}

#[test]
fn one_of_the_audiences_is_enough() {
    let (world, key) = world();
    for audience in [
        json!("ringq"),
        json!("ringq.example"),
        json!(["other", "ringq"]),
        json!(["ringq", "ringq.example"]),
    ] {
        assert!(world.call(&signed(&key, "a", json!({ "aud": audience }))).is_ok(), "{audience}");
    }
    for audience in
        [json!("other"), json!("RINGQ"), json!("ringq "), json!(""), json!([]), json!(["a", "b"])]
    {
        let error = world.refusal(&signed(&key, "a", json!({ "aud": audience })));
        let text = "the JSON Web Token is for another audience; request one for the audience \"ringq\" or \
                    \"ringq.example\"";
        assert_eq!(error.to_string(), text, "{audience}");
    }
}

#[test]
fn the_claim_iss_alone_chooses_the_issuer() {
    let (k, other) = (TestKey::es256(), TestKey::es256());
    let two = format!(
        "{FILE}\n[[identity]]\nname = 'other'\njwt = [{{ issuer = 'o', subject = 'alice' }}]\n\
         [[issuer]]\nname = 'o'\nissuer = 'https://other.example'\naudiences = ['ringq']\njwks_file = 'other.json'"
    );
    // Both issuers have a key of the same name.
    let files = [("jwks.json", jwks(&[k.jwk("same")])), ("other.json", jwks(&[other.jwk("same")]))];
    let world = World::new(&two, &files.each_ref().map(|(name, text)| (*name, text.as_str())));
    let of_other = json!({ "iss": "https://other.example" });
    assert_eq!(world.call(&signed(&k, "same", json!({}))), Ok("shop".to_owned()));
    assert_eq!(world.call(&signed(&other, "same", of_other.clone())), Ok("other".to_owned()));
    let wrong = |issuer: &str| JwtError::WrongSignature { issuer: issuer.to_owned() };
    assert_eq!(world.refusal(&signed(&other, "same", json!({}))), wrong("k"));
    assert_eq!(world.refusal(&signed(&k, "same", of_other)), wrong("o"));
    for iss in ["https://issuer.example/", "HTTPS://issuer.example", "", "k"] {
        let error = world.refusal(&signed(&k, "same", json!({ "iss": iss })));
        assert_eq!(error, JwtError::UnknownIssuer { iss: format!("{iss:?}") });
    }
    let error = world.refusal(&signed(&k, "same", json!({ "iss": "\n\u{1b}".repeat(500) })));
    let text = error.to_string();
    assert!(text.len() < 1_000 && !text.contains(char::is_control), "{text}");
}

#[test]
fn a_token_is_valid_from_nbf_to_exp_and_the_leeway_beyond() {
    for (lines, leeway) in [("", 30), ("leeway = '0s'", 0), ("leeway = '60s'", 60)] {
        let key = TestKey::es256();
        let file = FILE.replacen("jwks_file", &format!("{lines}\njwks_file"), 1);
        let world = World::new(&file, &[("jwks.json", &jwks(&[key.jwk("a")]))]);
        let exp = |seconds: i64| world.call(&signed(&key, "a", json!({ "exp": NOW + seconds })));
        assert!(exp(1 - leeway).is_ok());
        let by = Duration::from_secs(leeway.unsigned_abs());
        assert_eq!(exp(-leeway), Err(JwtError::Expired { by }.into()));
        assert_eq!(
            exp(-3_601).unwrap_err().to_string().split(';').next().unwrap(),
            "the JSON Web Token expired 1h 1s ago"
        );
        let nbf = |seconds: i64| world.call(&signed(&key, "a", json!({ "nbf": NOW + seconds })));
        assert!(nbf(leeway).is_ok());
        let by = Duration::from_secs(leeway.unsigned_abs() + 1);
        assert_eq!(nbf(leeway + 1), Err(JwtError::NotYetValid { by }.into()));
    }
    let (world, key) = world();
    assert!(world.call(&signed(&key, "a", json!({ "nbf": null }))).is_ok(), "nbf is optional");
    let fraction = json!({ "exp": (NOW as f64) - 29.5, "nbf": (NOW as f64) + 29.5 });
    assert!(world.call(&signed(&key, "a", fraction)).is_ok(), "times may have fractions");
    assert!(world.call(&signed(&key, "a", json!({ "exp": u64::MAX }))).is_ok());
    let error = world.refusal(&signed(&key, "a", json!({ "exp": 1e300 })));
    assert_eq!(error, JwtError::MissingClaim("exp".to_owned()), "beyond any time");
    for far in [json!(1e300), json!(u64::MAX)] {
        let error = world.refusal(&signed(&key, "a", json!({ "nbf": far })));
        assert!(matches!(error, JwtError::NotYetValid { .. }), "{error:?}");
    }
    for past in [json!(-1e300), json!(-1), json!(0)] {
        assert!(world.call(&signed(&key, "a", json!({ "exp": past }))).is_err(), "{past}");
    }
}

#[test]
fn subjects_are_compared_byte_by_byte() {
    let odd =
        ["a b", "ä", "a\u{308}", "\"'\\", "system:serviceaccount:shop:api", "a\nb\u{0}", "👩‍🚀"];
    let key = TestKey::es256();
    let mut file = FILE.to_owned();
    for (index, subject) in odd.iter().enumerate() {
        let text = toml::Value::from(*subject);
        file += &format!(
            "\n[[identity]]\nname = 'i{index}'\njwt = [{{ issuer = 'k', subject = {text} }}]"
        );
    }
    let world = World::new(&file, &[("jwks.json", &jwks(&[key.jwk("a")]))]);
    for (index, subject) in odd.iter().enumerate() {
        let found = world.call(&signed(&key, "a", json!({ "sub": subject })));
        assert_eq!(found, Ok(format!("i{index}")), "{subject:?}");
    }
    for subject in ["", " alice", "Alice", "alice\u{0}", "a", "*", "bob"] {
        let error = world.refusal(&signed(&key, "a", json!({ "sub": subject })));
        let (issuer, subject) = ("k".to_owned(), format!("{subject:?}"));
        assert_eq!(error, JwtError::UnknownSubject { issuer, subject });
    }
    let error = world.refusal(&signed(&key, "a", json!({ "sub": "bob" }))).to_string();
    assert_eq!(
        error,
        "no identity has the subject \"bob\" of the issuer k; add it to the `jwt` of one"
    );
}

#[test]
fn the_result_for_a_token_ends_with_it_on_each_connection() {
    let (world, key) = world();
    let token = signed(&key, "a", json!({}));
    let header = format!("Bearer {token}");
    let connections = [(); 2].map(|()| world.authenticator.connection(None));
    let call = |of: usize| connections[of].caller(Some(header.as_bytes()));
    let ends = Time((NOW + LIFE + 30) * 1_000_000);
    assert_eq!(call(0).unwrap().ends(), Some(ends));
    world.advance(629);
    assert_eq!(call(1).unwrap().ends(), Some(ends), "known from the other connection");
    assert!(call(0).is_ok());
    world.advance(1);
    for of in 0..2 {
        let by = Duration::from_secs(30);
        assert_eq!(call(of).unwrap_err(), JwtError::Expired { by }.into(), "{of}");
    }
    assert_eq!(world.call(&token), Err(JwtError::Expired { by: Duration::from_secs(30) }.into()));
}

#[tokio::test]
async fn the_rights_of_a_caller_end_with_its_token() {
    use futures::FutureExt as _;

    let (world, key) = world();
    let header = format!("Bearer {}", signed(&key, "a", json!({})));
    let connection = world.authenticator.connection(None);
    let caller = connection.caller(Some(header.as_bytes())).unwrap();
    let mut ended = Box::pin(world.authenticator.ended(&caller));
    world.advance(629);
    assert!((&mut ended).now_or_never().is_none());
    world.advance(1);
    assert!(ended.now_or_never().is_some());

    // Or with the rules by which it was accepted.
    let header = format!("Bearer {}", signed(&key, "a", json!({ "exp": NOW + 10 * LIFE })));
    let caller = connection.caller(Some(header.as_bytes())).unwrap();
    let mut ended = Box::pin(world.authenticator.ended(&caller));
    world.read_again();
    assert!((&mut ended).now_or_never().is_none(), "nothing has changed");
    let path = world.directory.path().join("identities.toml");
    write(&path, &FILE.replace("'ringq',", "'new',"));
    world.read_again();
    assert!(ended.now_or_never().is_some());
}

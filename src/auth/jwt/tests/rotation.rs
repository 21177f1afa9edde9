//! Sets of keys: names, entries that are of no use, and keys that are replaced in a file.

use serde_json::json;

use super::*;

#[test]
fn keys_are_chosen_by_name_unless_there_is_one_without() {
    let (a, b) = (TestKey::es256(), TestKey::es256());
    let unnamed = |key: &TestKey| token(key, &json!({ "alg": "ES256" }), &claims(json!({})));
    let one = World::with_keys(&[a.jwk("a")]);
    assert!(one.call(&unnamed(&a)).is_ok(), "a single key needs no name");
    let unknown =
        |kid: &str| JwtError::UnknownKey { issuer: "k".to_owned(), kid: format!("{kid:?}") };
    assert_eq!(one.refusal(&signed(&a, "b", json!({}))), unknown("b"));
    let nameless = World::with_keys(&[a.jwk_without_kid()]);
    assert!(nameless.call(&unnamed(&a)).is_ok());
    assert!(nameless.call(&signed(&a, "any", json!({}))).is_ok());
    let two = World::with_keys(&[a.jwk("a"), b.jwk("b")]);
    assert_eq!(two.refusal(&unnamed(&a)), JwtError::NoKeyNamed { issuer: "k".to_owned() });
    assert_eq!(two.refusal(&signed(&a, "c", json!({}))), unknown("c"));
    assert_eq!(two.refusal(&signed(&a, "", json!({}))), unknown(""));
    assert!(two.call(&signed(&a, "a", json!({}))).is_ok());
    let wrong = JwtError::WrongSignature { issuer: "k".to_owned() };
    assert_eq!(two.refusal(&signed(&a, "b", json!({}))), wrong);
    let mixed = World::with_keys(&[a.jwk_without_kid(), b.jwk("b")]);
    assert_eq!(mixed.refusal(&signed(&a, "a", json!({}))), unknown("a"));
}

#[test]
fn keys_of_one_name_are_all_tried() {
    let (a, b, ed) = (TestKey::es256(), TestKey::es256(), TestKey::ed25519());
    let world = World::with_keys(&[a.jwk("same"), b.jwk("same"), ed.jwk("same")]);
    for key in [&a, &b, &ed] {
        assert!(world.call(&signed(key, "same", json!({}))).is_ok(), "{}", key.alg());
    }
    let wrong = JwtError::WrongSignature { issuer: "k".to_owned() };
    assert_eq!(world.refusal(&signed(&TestKey::es256(), "same", json!({}))), wrong);
}

#[test]
fn entries_that_are_no_usable_keys_are_left_out() {
    let key = TestKey::es256();
    let with = |changes: Value| {
        let mut jwk = key.jwk("bad");
        for (name, value) in changes.as_object().unwrap() {
            jwk[name] = value.clone();
        }
        jwk
    };
    let garbage = [
        json!(null),
        json!(7),
        json!({}),
        json!({ "kty": "new", "kid": "bad" }),
        json!({ "kty": "oct", "kid": "bad", "k": "c2VjcmV0" }),
        json!({ "kty": "RSA", "kid": "bad", "n": "AQAB", "e": "AQAB" }),
        json!({ "kty": "RSA", "kid": "bad", "n": "!", "e": "AQAB" }),
        json!({ "kty": "EC", "kid": "bad", "crv": "P-521", "x": "AA", "y": "AA" }),
        json!({ "kty": "OKP", "kid": "bad", "crv": "X25519", "x": "AA" }),
        json!({ "kty": "OKP", "kid": "bad", "crv": "Ed25519", "x": "AA" }),
        with(json!({ "use": "enc" })),
        with(json!({ "key_ops": ["encrypt"] })),
        with(json!({ "alg": "ES384" })),
        with(json!({ "alg": "HS256" })),
        with(json!({ "x": "AAAA" })),
        with(json!({ "crv": "P-384" })),
    ];
    for one in &garbage {
        assert!(KeySet::parse(jwks(std::slice::from_ref(one)).as_bytes()).is_err(), "{one}");
    }
    let mut keys = garbage.to_vec();
    keys.insert(3, key.jwk("good"));
    let set = KeySet::parse(jwks(&keys).as_bytes()).unwrap();
    assert_eq!((set.len(), set.unusable()), (1, garbage.len()));
    keys.push(with(json!({ "kid": "also", "use": "sig", "key_ops": ["verify"], "alg": "ES256" })));
    let world = World::with_keys(&keys);
    assert!(world.call(&signed(&key, "good", json!({}))).is_ok());
    assert!(world.call(&signed(&key, "also", json!({}))).is_ok());
    assert!(world.call(&signed(&key, "bad", json!({}))).is_err());
    for text in ["", "[]", "{}", "{\"keys\":{}}", "{\"keys\":[]}", "null"] {
        assert!(KeySet::parse(text.as_bytes()).is_err(), "{text}");
    }
    let many = vec![key.jwk("a"); 257];
    assert_eq!(KeySet::parse(jwks(&many).as_bytes()).unwrap_err(), "has more than 256 keys");
}

/// A modulus that is written with a leading zero, as some issuers do.
#[test]
fn leading_zeros_of_a_modulus_do_not_count() {
    let Some(key) = TestKey::rs256() else { return };
    let mut jwk = key.jwk("a");
    let TestKey::Rsa(pair, ..) = &key else { unreachable!() };
    let of: ring::signature::RsaPublicKeyComponents<Vec<u8>> = pair.public().into();
    jwk["n"] = signer::encode([&[0, 0][..], &of.n].concat()).into();
    assert!(World::with_keys(&[jwk]).call(&signed(&key, "a", json!({}))).is_ok());
}

/// The files are compared once a second, in real time.
#[tokio::test]
async fn keys_in_a_file_are_replaced_while_the_server_runs() {
    let (a, b) = (TestKey::es256(), TestKey::es256());
    let world = World::with_keys(&[a.jwk("a")]);
    let (of_a, of_b) = (signed(&a, "a", json!({})), signed(&b, "b", json!({})));
    let source = IdentitySource::new(world.directory.path().join("identities.toml"), |_| None);
    let following = tokio::spawn(source.follow(world.authenticator.clone(), |_| {}));
    let connection = world.authenticator.connection(None);
    let call = |token: &str| connection.caller(Some(format!("Bearer {token}").as_bytes())).is_ok();
    let becomes = async |of_key_a: bool, of_key_b: bool| {
        for _ in 0..1_000 {
            if (call(&of_a), call(&of_b)) == (of_key_a, of_key_b) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the keys are not replaced: {} {}", call(&of_a), call(&of_b));
    };
    let file = world.directory.path().join("jwks.json");
    // The first comparison is with what the task itself has read.
    tokio::time::sleep(Duration::from_millis(200)).await;
    becomes(true, false).await;
    write(&file, &jwks(&[a.jwk("a"), b.jwk("b")]));
    becomes(true, true).await;
    write(&file, "half of a fi");
    for _ in 0..1_000 {
        if world.authenticator.failed_reloads() > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(world.authenticator.failed_reloads(), 1);
    assert!(call(&of_a) && call(&of_b), "the former keys stay in force");
    write(&file, &jwks(&[b.jwk("b")]));
    becomes(false, true).await;
    assert_eq!(world.authenticator.failed_reloads(), 0);
    following.abort();
}

/// A key that is removed proves nothing any more: neither the next call nor a stream that was opened before.
#[tokio::test]
async fn the_rights_of_a_caller_end_with_the_key_of_its_token() {
    use futures::FutureExt as _;

    let (a, b) = (TestKey::es256(), TestKey::es256());
    let world = World::with_keys(&[a.jwk("a"), b.jwk("b")]);
    let connection = world.authenticator.connection(None);
    let call = |key: &TestKey, kid: &str| {
        let header = format!("Bearer {}", signed(key, kid, json!({})));
        connection.caller(Some(header.as_bytes()))
    };
    let callers = [call(&a, "a").unwrap(), call(&b, "b").unwrap()];
    let mut ended = callers.each_ref().map(|caller| Box::pin(world.authenticator.ended(caller)));
    let mut have_ended = || ended.each_mut().map(|ended| ended.now_or_never().is_some());
    let file = world.directory.path().join("jwks.json");
    write(&file, &jwks(&[b.jwk("renamed"), a.jwk("a"), TestKey::es256().jwk("new")]));
    world.read_again();
    assert_eq!(have_ended(), [false, false], "both keys are there, whatever their names are");
    write(&file, &jwks(&[b.jwk("b")]));
    world.read_again();
    assert_eq!(have_ended(), [true, false]);
    assert!(call(&a, "a").is_err() && call(&b, "b").is_ok());
}

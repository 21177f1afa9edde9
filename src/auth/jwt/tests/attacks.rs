//! Forged tokens, which must not be accepted.

use ring::hmac;
use serde_json::json;

use super::signer::encode;
use super::*;

/// Returns a token whose last part is made by `sign` of the first two.
fn forged(header: Value, sign: impl Fn(&str) -> Vec<u8>) -> String {
    let message =
        format!("{}.{}", encode(header.to_string()), encode(claims(json!({})).to_string()));
    let signature = sign(&message);
    format!("{message}.{}", encode(signature))
}

#[test]
fn tokens_without_a_signature_are_refused() {
    let key = TestKey::es256();
    let world = World::with_keys(&[key.jwk("a")]);
    for alg in ["none", "None", "NONE", "nOnE", ""] {
        for signature in [vec![], b"x".to_vec()] {
            let token = forged(json!({ "alg": alg, "kid": "a" }), |_| signature.clone());
            let error = world.refusal(&token);
            assert!(matches!(error, JwtError::AlgorithmNotAllowed { .. }), "{alg}: {error:?}");
        }
    }
    let unsigned = forged(json!({ "alg": "ES256", "kid": "a" }), |_| vec![]);
    assert_eq!(world.refusal(&unsigned), JwtError::WrongSignature { issuer: "k".to_owned() });
    let no_alg = forged(json!({ "kid": "a" }), |_| vec![]);
    assert_eq!(world.refusal(&no_alg), JwtError::Malformed("header"));
}

/// Key confusion: the public key, which everyone has, as the secret of an HMAC.
#[test]
fn a_public_key_is_no_secret_of_an_hmac() {
    let Some(key) = TestKey::rs256() else { return };
    let jwk = key.jwk("a");
    let world = World::with_keys(std::slice::from_ref(&jwk));
    assert_eq!(world.call(&signed(&key, "a", json!({}))), Ok("shop".to_owned()));
    let modulus = jwk["n"].as_str().unwrap();
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{modulus}\n-----END PUBLIC KEY-----\n");
    for secret in [modulus.as_bytes(), pem.as_bytes(), jwk.to_string().as_bytes(), b""] {
        for (alg, algorithm) in [
            ("HS256", hmac::HMAC_SHA256),
            ("HS384", hmac::HMAC_SHA384),
            ("HS512", hmac::HMAC_SHA512),
        ] {
            let secret = hmac::Key::new(algorithm, secret);
            let token = forged(json!({ "alg": alg, "kid": "a" }), |message| {
                hmac::sign(&secret, message.as_bytes()).as_ref().to_vec()
            });
            let error = world.refusal(&token);
            assert!(matches!(error, JwtError::AlgorithmNotAllowed { .. }), "{error:?}");
            // Nor with an algorithm that is allowed.
            let token = forged(json!({ "alg": "RS256", "kid": "a" }), |message| {
                hmac::sign(&secret, message.as_bytes()).as_ref().to_vec()
            });
            let wrong = JwtError::WrongSignature { issuer: "k".to_owned() };
            assert_eq!(world.refusal(&token), wrong);
        }
    }
}

#[test]
fn an_algorithm_that_does_not_fit_the_key_is_refused() {
    let Some(rsa) = TestKey::rs256() else { return };
    let (ec, ed) = (TestKey::es256(), TestKey::ed25519());
    let world = World::with_keys(&[rsa.jwk("rsa"), ec.jwk("ec"), ed.jwk("ed")]);
    for (key, kid) in [(&ec, "rsa"), (&rsa, "ec"), (&ed, "rsa"), (&ec, "ed"), (&rsa, "ed")] {
        let error = world.refusal(&signed(key, kid, json!({})));
        assert_eq!(error, JwtError::WrongKeyType { issuer: "k".to_owned() }, "{kid}");
    }
    // The header states another algorithm of the same key than the one that signed.
    let header = json!({ "alg": "PS256", "kid": "rsa" });
    let error = world.refusal(&token(&rsa, &header, &claims(json!({}))));
    assert_eq!(error, JwtError::WrongSignature { issuer: "k".to_owned() });
}

#[test]
fn only_the_algorithms_of_the_issuer_are_allowed() {
    let Some(rsa) = TestKey::rs256() else { return };
    let Some(pss) = TestKey::ps256() else { return };
    let (ec, es384, ed) = (TestKey::es256(), TestKey::es384(), TestKey::ed25519());
    let keys = [rsa.jwk("rsa"), ec.jwk("ec"), es384.jwk("es384"), ed.jwk("ed")];
    let all = World::with_keys(&keys);
    let default = World::new(&FILE.replace("algorithms =", "#"), &[("jwks.json", &jwks(&keys))]);
    for (key, kid, is_default) in [
        (&rsa, "rsa", true),
        (&ec, "ec", true),
        (&pss, "rsa", false),
        (&es384, "es384", false),
        (&ed, "ed", false),
    ] {
        let token = signed(key, kid, json!({}));
        assert_eq!(all.call(&token), Ok("shop".to_owned()), "{}", key.alg());
        assert_eq!(default.call(&token).is_ok(), is_default, "{}", key.alg());
    }
    let error = default.refusal(&signed(&ed, "ed", json!({})));
    let text = "the algorithm \"EdDSA\" of the JSON Web Token is not allowed for the issuer k; allowed: RS256, ES256";
    assert_eq!(error.to_string(), text);
}

#[test]
fn changed_tokens_and_those_of_other_keys_are_refused() {
    let (key, other) = (TestKey::es256(), TestKey::es256());
    let world = World::with_keys(&[key.jwk("a")]);
    let good = signed(&key, "a", json!({}));
    let wrong = JwtError::WrongSignature { issuer: "k".to_owned() };
    assert_eq!(world.refusal(&signed(&other, "a", json!({}))), wrong);
    let (parts, forged) =
        (good.split('.').collect::<Vec<_>>(), signed(&key, "a", json!({ "sub": "bob" })));
    let forged = forged.split('.').collect::<Vec<_>>();
    let mixed = format!("{}.{}.{}", parts[0], forged[1], parts[2]);
    assert_eq!(world.refusal(&mixed), wrong);
    // A key in the token itself is not used.
    let header = json!({ "alg": "ES256", "kid": "a", "jwk": other.jwk("a") });
    assert_eq!(world.refusal(&token(&other, &header, &claims(json!({})))), wrong);
    for url in ["jku", "x5u"] {
        let header = json!({ "alg": "ES256", "kid": "a", url: "http://127.0.0.1:1/jwks" });
        assert_eq!(world.refusal(&token(&other, &header, &claims(json!({})))), wrong);
    }
    assert_eq!(world.call(&good), Ok("shop".to_owned()));
}

#[test]
fn extensions_and_malformed_tokens_are_refused() {
    let key = TestKey::es256();
    let world = World::with_keys(&[key.jwk("a")]);
    for crit in [json!(["exp"]), json!([]), json!(null), json!("b64")] {
        let header = json!({ "alg": "ES256", "kid": "a", "crit": crit });
        let error = world.refusal(&token(&key, &header, &claims(json!({}))));
        assert_eq!(error, JwtError::CriticalHeader, "{crit}");
    }
    // Any type of token is accepted: RFC 9068 has one, Kubernetes has none.
    for typ in ["JWT", "at+jwt", "x"] {
        let header = json!({ "alg": "ES256", "kid": "a", "typ": typ });
        assert!(world.call(&token(&key, &header, &claims(json!({})))).is_ok());
    }
    let good = signed(&key, "a", json!({}));
    let parts: Vec<_> = good.split('.').collect();
    for (bad, what) in [
        ("..".to_owned(), "header"),
        (format!("!.{}.{}", parts[1], parts[2]), "header"),
        (format!("{}=.{}.{}", parts[0], parts[1], parts[2]), "header"),
        (format!("{}..{}", parts[0], parts[2]), "list of claims"),
        (format!("{}.{}.{}", parts[0], encode("[]"), parts[2]), "list of claims"),
        (format!("{}.{}.{}", encode("{\"alg\":1}"), parts[1], parts[2]), "header"),
        (
            format!("{}.{}.{}", encode("{\"alg\":\"none\",\"alg\":\"ES256\"}"), parts[1], parts[2]),
            "header",
        ),
        (format!("{}.{}.!", parts[0], parts[1]), "content"),
    ] {
        assert_eq!(world.refusal(&bad), JwtError::Malformed(what), "{bad}");
    }
    for more in [format!("{good}."), format!("{good}.x"), format!(".{good}")] {
        assert_eq!(world.call(&more), Err(Unauthenticated::UnknownToken), "not of three parts");
    }
}

#[test]
fn a_huge_token_is_refused_before_it_is_read() {
    let key = TestKey::es256();
    let world = World::with_keys(&[key.jwk("a")]);
    let of_size = |size: usize| signed(&key, "a", json!({ "x": "y".repeat(size) }));
    let base = of_size(0).len();
    let largest = of_size((8_192 - base) / 4 * 3);
    assert!((8_180..=8_192).contains(&largest.len()), "{}", largest.len());
    assert_eq!(world.call(&largest), Ok("shop".to_owned()));
    for size in [(8_192 - base) / 4 * 3 + 12, 100_000, 1_000_000] {
        assert_eq!(world.call(&of_size(size)), Err(Unauthenticated::TooLarge));
    }
    assert_eq!(world.call(&"a.b.c".repeat(4_000)), Err(Unauthenticated::TooLarge));
}

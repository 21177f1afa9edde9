use std::net::SocketAddr;
use std::process::Stdio;

use tokio::io::AsyncWriteExt as _;

use super::{Ran, command, finish};

async fn token(args: &[&str], input: &[u8]) -> Ran {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut child =
        command(nowhere, &[&["token"], args].concat()).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that reads nothing closes it.
    let _ = stdin.write_all(input).await;
    drop(stdin);
    finish(child).await
}

#[tokio::test]
async fn a_new_token_comes_with_its_hash() {
    let new = token(&["new"], b"").await;
    let notes = new.stderr.clone();
    let stdout = new.ok();
    let [text, hash] = stdout.lines().collect::<Vec<_>>()[..] else { panic!("{stdout}") };
    assert!(text.len() == 46 && text.starts_with("rq_"), "{text}");
    assert!(notes.contains(&format!("tokens = [\"{hash}\"]")), "{notes}");
    assert!(notes.contains("RINGQ_TOKEN") && !notes.contains(text), "{notes}");
    let again = token(&["hash"], format!(" {text}\r\n").as_bytes()).await;
    assert_eq!(again.stderr, "");
    assert_eq!(again.ok(), format!("{hash}\n"));
    let json = token(&["new", "-o", "json"], b"").await.json();
    let other = json["token"].as_str().unwrap();
    assert_ne!(other, text);
    let hashed = token(&["hash"], other.as_bytes()).await.ok();
    assert_eq!(hashed.trim_end(), json["hash"].as_str().unwrap());
}

#[tokio::test]
async fn input_that_is_no_token_has_no_hash() {
    let long = [b'a'; 20_000];
    for (input, part) in [
        (&b""[..], "is empty"),
        (b" \n", "is empty"),
        (b"planted\nplanted", "is not one line"),
        (b"plan ted", "is not one line"),
        (b"planted\xff", "is not one line"),
        (&long, "is longer than 15 KiB"),
    ] {
        let ran = token(&["hash"], input).await.fails(2, &[part, "ringq token hash < FILE"]);
        assert!(!ran.stderr.contains("ted\n") && ran.stdout.is_empty(), "{}", ran.stderr);
    }
    token(&["hash", "planted"], b"").await.fails(2, &["unexpected argument"]);
    let weak = token(&["hash"], b"planted").await;
    assert!(weak.stderr.contains("may be guessed"), "{}", weak.stderr);
    // As by: printf %s planted | sha256sum
    let want = "sha256:372eb3774802a8d97badd0f3afdabbf7a17ef8a1f900b394db99a460b893406c
";
    assert_eq!(weak.stdout, want);
}

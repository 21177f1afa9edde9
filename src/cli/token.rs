//! `ringq token`: bearer tokens, and the hashes that servers keep of them.

use std::io::{self, IsTerminal as _, Read as _};

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use rand::TryRngCore as _;
use rand::rngs::OsRng;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::exit::{CommandFailure, print_note};
use super::output::{OutputArgs, StdoutWriter};
use super::write_stdout;

/// Beginning of each token, by which scanners of repositories can find one.
const PREFIX: &str = "rq_";
/// Random bytes of a token.
const RANDOM_BYTES: usize = 32;
/// Maximum length of a token whose hash is printed.
const TOKEN_BYTES_MAX: u64 = 15 << 10;
/// Length below which a token may be guessed.
const TOKEN_BYTES_STRONG: usize = 32;

/// Subcommands of `ringq token`.
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Print a new token, and on the next line the hash that a server keeps of it
    New(TokenNewArgs),
    /// Read a token from standard input and print its hash
    Hash(TokenHashArgs),
}

/// Arguments of `ringq token new`.
#[derive(Debug, Args)]
#[command(after_help = "\
A token is rq_ and 43 characters for 32 random bytes; no server or file keeps it. The hash is SHA-256 over the whole \
token, and goes into the list `tokens` of an identity at the server. The token goes to the client.

Examples:
  ringq token new
  ringq token new -o json | jq -r .hash
  ringq token new | { read -r token; read -r hash; echo \"$hash\"; }")]
pub(super) struct TokenNewArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `ringq token hash`.
#[derive(Debug, Args)]
#[command(after_help = "\
The token is no argument: other users of this machine could see it. White space around it is ignored.

Example:
  ringq token hash < prod.token")]
pub(super) struct TokenHashArgs {}

// === impl TokenCommand ===

impl TokenCommand {
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        match self {
            TokenCommand::New(new) => new.run(),
            TokenCommand::Hash(TokenHashArgs {}) => print_hash(),
        }
    }
}

// === impl TokenNewArgs ===

impl TokenNewArgs {
    fn run(&self) -> Result<(), CommandFailure> {
        let token = new_token()?;
        let hash = hash(&token);
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            out.write_line(&format!("{:#}", json!({ "token": token, "hash": hash })))?;
        } else {
            out.write_line(&token)?;
            out.write_line(&hash)?;
            print_note(&format!("server: in the identity, tokens = [\"{hash}\"]"));
            print_note("client: the first line, in RINGQ_TOKEN or in the file of --token-file");
        }
        out.flush()
    }
}

/// Returns a new token, from the random numbers of the system.
fn new_token() -> Result<String, CommandFailure> {
    let mut bytes = [0; RANDOM_BYTES];
    OsRng.try_fill_bytes(&mut bytes).context("the system has no random numbers")?;
    Ok(format!("{PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(bytes)))
}

/// Returns the hash of a token as servers keep it: `sha256:` and 64 hex digits, over the whole token.
pub(super) fn hash(token: &str) -> String {
    let digest = Sha256::digest(token.as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn print_hash() -> Result<(), CommandFailure> {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        print_note("reading the token: end with Enter and Ctrl-D");
    }
    let mut text = Vec::new();
    let mut input = stdin.lock().take(TOKEN_BYTES_MAX + 1);
    input.read_to_end(&mut text).context("cannot read standard input")?;
    let token = str::from_utf8(&text).unwrap_or_default().trim_ascii();
    if text.len() as u64 > TOKEN_BYTES_MAX {
        return Err(not_a_token("is longer than 15 KiB"));
    }
    if text.trim_ascii().is_empty() {
        return Err(not_a_token("is empty"));
    }
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(not_a_token("is not one line of ASCII without spaces"));
    }
    if token.len() < TOKEN_BYTES_STRONG {
        print_note(&format!(
            "WARNING: a token of fewer than {TOKEN_BYTES_STRONG} characters may be guessed; `ringq token new` makes one"
        ));
    }
    write_stdout(&format!("{}\n", hash(token)))
}

fn not_a_token(why: &str) -> CommandFailure {
    let hint = "give one token, as in `ringq token hash < FILE`";
    CommandFailure::usage(format!("the token on standard input {why}")).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_new_and_have_one_form() {
        let (one, two) = (new_token().unwrap(), new_token().unwrap());
        assert_ne!(one, two);
        let random = one.strip_prefix("rq_").unwrap();
        assert_eq!(BASE64_URL_SAFE_NO_PAD.decode(random).unwrap().len(), RANDOM_BYTES);
        assert_eq!(one.len(), 46);
    }

    /// The value is that of `printf %s TOKEN | sha256sum`.
    #[test]
    fn the_hash_is_that_of_the_whole_text() {
        let want = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash("abc"), want);
    }
}

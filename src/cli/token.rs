//! `ringq token`: bearer tokens, and the hashes that servers keep of them.

use std::io::{self, IsTerminal as _, Read as _};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde_json::json;

use super::exit::{CommandFailure, print_note};
use super::output::{OutputArgs, StdoutWriter};
use super::write_stdout;
use crate::auth::token::{self, TokenHash};

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
        let token = token::generate();
        let hash = TokenHash::of(&token).to_string();
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
    write_stdout(&format!("{}\n", TokenHash::of(token)))
}

fn not_a_token(why: &str) -> CommandFailure {
    let hint = "give one token, as in `ringq token hash < FILE`";
    CommandFailure::usage(format!("the token on standard input {why}")).with_hint(hint)
}

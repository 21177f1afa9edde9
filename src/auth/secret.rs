//! Tokens by reference: a file of identities names the variable or the file that has the token, or has its hash.

use std::path::Path;

use super::token::{PREFIX, TokenHash};
use crate::source_files;

/// Minimum number of characters of a token of a user's own choice.
const CHARS_MIN: usize = 16;

/// Function that returns a variable of the environment, unless it is empty.
pub type Variables = fn(&str) -> Option<String>;

/// Reads `sha256:DIGITS`, `env:NAME` or `file:PATH`.
///
/// # Errors
/// A text that does not contain the token.
pub(super) fn token_hash(reference: &str, variables: Variables) -> Result<TokenHash, String> {
    if let Some(hash) = TokenHash::parse(reference) {
        return Ok(hash);
    }
    let place = reference.split_once(':').map_or("", |(_, place)| place);
    if place.starts_with(PREFIX) {
        // Not quoted: it is the token itself.
        return Err(
            "must name the variable or the file that has the token, or be its hash".to_owned()
        );
    }
    let token = if let Some(name) = reference.strip_prefix("env:") {
        variables(name).ok_or_else(|| format!("the variable {name} is not set"))?
    } else if let Some(path) = reference.strip_prefix("file:") {
        source_files::read_text(Path::new(path))?
    } else {
        return Err("must be sha256: and 64 hexadecimal digits, as `ringq token new` prints them, env:NAME or \
                    file:PATH"
            .to_owned());
    };
    let token = token.trim();
    if token.chars().count() < CHARS_MIN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "{place} has no token of at least {CHARS_MIN} characters without blanks; make one with `ringq token new`"
        ));
    }
    Ok(TokenHash::of(token))
}

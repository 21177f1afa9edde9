//! Settings of both programs.
#![expect(clippy::disallowed_methods, reason = "a program of its own reads its own environment")]

use std::error::Error;
use std::str::FromStr;
use std::time::Duration;

use ringq::client::{Client, Options};

/// Returns a setting, or its default if it is not set or empty.
pub(crate) fn setting<T>(name: &str, default: T) -> Result<T, Box<dyn Error>>
where
    T: FromStr<Err: Error + 'static>,
{
    match std::env::var(name).unwrap_or_default() {
        text if text.is_empty() => Ok(default),
        text => text.parse().map_err(|error| format!("{name}={text}: {error}").into()),
    }
}

/// Returns a setting in seconds.
pub(crate) fn seconds(name: &str, default: f64) -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::try_from_secs_f64(setting(name, default)?)?)
}

/// Connects to `RINGQ_SERVER`, with `RINGQ_TOKEN` and `RINGQ_CA` if they are set.
pub(crate) fn client() -> Result<Client, Box<dyn Error>> {
    let ca = setting("RINGQ_CA", String::new())?;
    let scheme = if ca.is_empty() { "http" } else { "https" };
    let servers = setting("RINGQ_SERVER", "127.0.0.1:7700".to_owned())?;
    let url = |server: &str| format!("{scheme}://{}", server.trim());
    let servers = servers.split(',').map(url).collect::<Vec<_>>().join(",");
    let mut options = Options::default();
    if !ca.is_empty() {
        options = options.ca_file(ca);
    }
    let token = setting("RINGQ_TOKEN", String::new())?;
    if !token.is_empty() {
        options = options.token(token);
    }
    Ok(Client::with_options(servers, options)?)
}

//! `ringq auth`: what identities may do, read from their files without a server.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::exit::{self, CommandFailure};
use super::{values, write_stdout};
use crate::auth::{Denial, Identities, Identity, IdentitySource, RpcScope, rule};
use crate::config::{self, Config, ConfigFlags};
use crate::domain::{TopicName, TopicPattern};
use crate::rpc::Rpc;

/// Text below the help of `ringq auth check`.
const CHECK_HELP: &str = "\
Prints `allowed` or `denied`, and the rule that decides. Without --as it checks the files alone.

Examples:
  ringq auth check --identities /etc/ringq/identities
  ringq auth check --as shop-api --rpc Enqueue --topic shop.orders

Exit codes: 0 allowed, 1 denied, 2 the files or the arguments are wrong.";

/// Subcommands of `ringq auth`.
#[derive(Debug, Subcommand)]
pub(super) enum AuthCommand {
    /// Show whether an identity may do something, and by which rule
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
}

/// Arguments of `ringq auth check`.
#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Read this file or directory of identities [env: RINGQ_IDENTITIES] [default: that of the settings]
    #[arg(long, value_name = "PATH")]
    identities: Option<String>,
    /// Read settings from this TOML file [env: RINGQ_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
    /// The identity that calls
    #[arg(long = "as", value_name = "IDENTITY", requires = "rpc")]
    identity: Option<String>,
    /// The RPC, as Enqueue or ringq.v1.QueueService/Enqueue
    #[arg(long, value_name = "RPC", requires = "identity")]
    rpc: Option<String>,
    /// The topic, or for Stream and Pull a pattern such as shop.*
    #[arg(long, value_name = "TOPIC", requires = "rpc", value_parser = values::non_empty)]
    topic: Option<String>,
}

pub(super) fn run(command: AuthCommand) -> Result<(), CommandFailure> {
    let AuthCommand::Check(args) = command;
    let identities = read(&args)?;
    let Some(name) = &args.identity else {
        let (count, names) = (identities.len(), identities.names().join(", "));
        return write_stdout(&format!("identities: {count} ({names})\n"));
    };
    let Some(identity) = identities.get(name) else {
        let names = identities.names().join(", ");
        return Err(CommandFailure::usage(format!(
            "there is no identity {name}; there are {names}"
        )));
    };
    let rpc = args.rpc.as_deref().unwrap_or_default();
    let rpc: Rpc = rpc.parse().map_err(|()| {
        let names: Vec<_> = Rpc::ALL.iter().map(|rpc| rpc.name()).collect();
        CommandFailure::usage(format!("there is no RPC {rpc}; there are {}", names.join(", ")))
    })?;
    match decide(identity, rpc, args.topic.as_deref())? {
        Ok(rule) => write_stdout(&format!("allowed: {rule}\n")),
        Err(denial) => {
            write_stdout(&format!("denied: {denial}\n"))?;
            Err(CommandFailure::already_reported(exit::FAILED))
        }
    }
}

fn read(args: &CheckArgs) -> Result<Identities, CommandFailure> {
    let path = match &args.identities {
        Some(path) => Some(PathBuf::from(path)),
        None => {
            let config = args.config.clone();
            Config::load(&ConfigFlags { config, ..ConfigFlags::default() })?.identities
        }
    };
    let Some(path) = path else {
        let text = "the settings name no identities: everyone may do everything";
        return Err(
            CommandFailure::usage(text).with_hint("name a file or a directory with --identities")
        );
    };
    IdentitySource::new(path, config::variable)
        .read()
        .map_err(|texts| CommandFailure::usage(texts.join("\n")))
}

/// Decides as a server would, and returns the text of the rule.
fn decide(
    identity: &Identity,
    rpc: Rpc,
    topic: Option<&str>,
) -> Result<Result<String, Denial>, CommandFailure> {
    let permission = match identity.may_call(rpc) {
        Ok(permission) => permission,
        Err(denial) => return Ok(Err(denial)),
    };
    let needs_topic = !matches!(rule(rpc).scope, RpcScope::Server | RpcScope::Nothing);
    let topic = match topic {
        None if needs_topic => {
            let text = format!("{} concerns topics: name one with --topic", rpc.name());
            return Err(CommandFailure::usage(text));
        }
        Some(topic) if needs_topic => topic,
        _ => return Ok(Ok(permission.to_string())),
    };
    let invalid = |error| CommandFailure::usage(format!("--topic {topic}: {error}"));
    if rule(rpc).scope != RpcScope::Patterns {
        let topic = TopicName::try_new(topic).map_err(invalid)?;
        return Ok(identity.may_touch(rpc, &topic).map(|permission| permission.to_string()));
    }
    let asked = TopicPattern::parse(topic).map_err(invalid)?;
    let parts = identity.allowed_part(rpc, &asked);
    Ok(match (&parts[..], &asked) {
        ([], TopicPattern::Exact(topic)) => {
            identity.may_touch(rpc, topic).map(|permission| permission.to_string())
        }
        ([], TopicPattern::Prefix(_)) => Err(Denial::NoPattern(rpc)),
        ([part], _) if *part == asked => Ok(permission.to_string()),
        (parts, _) => {
            let parts: Vec<_> = parts.iter().map(ToString::to_string).collect();
            Ok(format!("of {asked} the part {}", parts.join(", ")))
        }
    })
}

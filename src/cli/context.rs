//! `ringq context`: servers and their credentials under names.

use clap::{Args, Subcommand};
use serde_json::{Map, Value};

use super::connect::{check_context, urls};
use super::contexts::{Context, Contexts};
use super::credentials::{CredentialArgs, Credentials, Token};
use super::exit::{CommandFailure, print_note};
use super::output::{Block, JsonList, OutputArgs, StdoutWriter, Table};
use super::{values, write_stdout};
use crate::config;

/// Text below the help of `ringq context`.
pub(super) const AFTER_HELP: &str = "\
Flags win over variables, these over the context in use; one that --context names wins over variables, too. The \
credentials of a context are sent to its own hosts only: with another --server or RINGQ_SERVER they are not used.

The file is RINGQ_CONTEXTS, else ringq/contexts.toml in XDG_CONFIG_HOME or ~/.config. Only its user can read it.

Examples:
  ringq context add prod --server https://queue:7700 --token-file prod.token
  ringq context use prod
  ringq topic list";

/// Subcommands of `ringq context`.
#[derive(Debug, Subcommand)]
pub(super) enum ContextCommand {
    /// Add a context; nothing is sent to its server
    Add(Box<ContextAddArgs>),
    /// Make commands use a context
    Use(ContextUseArgs),
    /// List the contexts
    #[command(visible_alias = "ls")]
    List(ContextListArgs),
    /// Print a context without its token
    Show(ContextShowArgs),
    /// Remove a context; its token and certificate files stay
    #[command(visible_alias = "rm")]
    Remove(ContextRemoveArgs),
}

/// Arguments of `ringq context add`.
#[derive(Debug, Args)]
#[command(after_help = "\
Prefer --token-file: a token of --token is stored in the file of the contexts as it is, and is in the history of the \
shell. Paths are stored as absolute ones; the files are read to check them.

Examples:
  ringq context add local --server :7700
  ringq context add prod --server https://queue.example.org:7700 --token-file t
  ringq context add eu --server https://a:7700,https://b:7700 --ca ca.pem")]
pub(super) struct ContextAddArgs {
    /// The name
    #[arg(value_parser = values::context_name)]
    name: String,
    /// The server, as in other commands [one or more, separated by commas]
    #[arg(long, value_name = "URL", value_parser = values::non_empty)]
    server: String,
    #[command(flatten)]
    credentials: CredentialArgs,
    /// Replace a context of this name
    #[arg(long)]
    replace: bool,
}

/// Arguments of `ringq context use`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ringq context use prod")]
pub(super) struct ContextUseArgs {
    /// The context
    #[arg(value_parser = values::context_name)]
    name: String,
}

/// Arguments of `ringq context list`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ringq context list -o json | jq -r '.[] | select(.in_use).name'")]
pub(super) struct ContextListArgs {
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `ringq context show`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ringq context show
  ringq context show prod -o json")]
pub(super) struct ContextShowArgs {
    /// The context [default: the one in use]
    #[arg(value_parser = values::context_name)]
    name: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `ringq context remove`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  ringq context remove staging")]
pub(super) struct ContextRemoveArgs {
    /// The context
    #[arg(value_parser = values::context_name)]
    name: String,
    /// Remove it even if it is in use; commands go to the default server then
    #[arg(long)]
    force: bool,
}

// === impl ContextCommand ===

impl ContextCommand {
    pub(super) fn run(self) -> Result<(), CommandFailure> {
        match self {
            ContextCommand::Add(add) => add.run(),
            ContextCommand::Use(r#use) => r#use.run(),
            ContextCommand::List(list) => list.run(),
            ContextCommand::Show(show) => show.run(),
            ContextCommand::Remove(remove) => remove.run(),
        }
    }
}

// === impl ContextAddArgs ===

impl ContextAddArgs {
    fn run(self) -> Result<(), CommandFailure> {
        let credentials = self.credentials.credentials().with_absolute_paths()?;
        let context = Context { server: urls(&self.server), credentials };
        check_context(&context)?;
        let name = self.name;
        let is_used = Contexts::update(|contexts| {
            contexts.add(&name, context, self.replace)?;
            Ok(contexts.is_current(&name))
        })?;
        if !is_used {
            print_note(&format!("`ringq context use {name}` makes commands use it"));
        }
        write_stdout(&format!("{name} added\n"))
    }
}

// === impl ContextUseArgs ===

impl ContextUseArgs {
    fn run(&self) -> Result<(), CommandFailure> {
        let server = Contexts::update(|contexts| {
            contexts.set_current(&self.name)?;
            Ok(contexts.get(&self.name)?.server.clone())
        })?;
        for variable in ["RINGQ_CONTEXT", "RINGQ_SERVER"] {
            if let Some(value) = config::variable(variable) {
                print_note(&format!("{variable} is set and wins here: {value}"));
            }
        }
        write_stdout(&format!("{} in use: {server}\n", self.name))
    }
}

// === impl ContextListArgs ===

impl ContextListArgs {
    fn run(&self) -> Result<(), CommandFailure> {
        let contexts = Contexts::read()?;
        // A wrong name in the variable must not hide the right ones.
        let selected = contexts.selected().unwrap_or_default();
        let is_used = |name: &str| selected.as_deref() == Some(name);
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            let mut list = JsonList::new();
            for (name, context) in contexts.iter() {
                let row = Value::Object(json(name, context, is_used(name)));
                list.raw_row(&mut out, row.to_string())?;
            }
            return list.end(&mut out);
        }
        let mut table = Table::new(["NAME", "SERVER", "CREDENTIALS", "IN USE"]);
        let mut is_empty = true;
        for (name, context) in contexts.iter() {
            is_empty = false;
            let used = if is_used(name) { "yes" } else { "" };
            let row = [name, &context.server, &*kinds(&context.credentials), used];
            table.row(row.map(str::to_owned));
        }
        if is_empty {
            print_note("no contexts yet: `ringq context add NAME --server URL` adds one");
        }
        table.print(&mut out)
    }
}

// === impl ContextShowArgs ===

impl ContextShowArgs {
    fn run(&self) -> Result<(), CommandFailure> {
        let contexts = Contexts::read()?;
        let selected = contexts.selected()?;
        let Some(name) = self.name.clone().or_else(|| selected.clone()) else {
            let hint = "`ringq context use NAME` makes commands use one";
            return Err(CommandFailure::usage("no context is in use").with_hint(hint));
        };
        let context = contexts.get(&name)?;
        let is_used = selected.as_deref() == Some(&name);
        let mut out = StdoutWriter::new();
        if self.output.is_json() {
            let object = Value::Object(json(&name, context, is_used));
            out.write_line(&format!("{object:#}"))?;
            return out.flush();
        }
        let mut block = Block::default();
        block.line("name", &name);
        block.line("in use", if is_used { "yes" } else { "no" });
        block.line("server", &context.server);
        let credentials = &context.credentials;
        match &credentials.token {
            Some(Token::Text(_)) => block.line("token", "hidden"),
            Some(Token::File(path)) => block.line("token file", path),
            None => block.line("token", "none"),
        }
        if credentials.allow_plaintext_token {
            block.line("plaintext token", "allowed");
        }
        block.line("authorities", credentials.ca.as_deref().unwrap_or("those of the system"));
        if let Some((cert, key)) = &credentials.identity {
            block.line("certificate", cert);
            block.line("key", key);
        }
        block.line("stored in", contexts.place());
        block.print(&mut out)
    }
}

// === impl ContextRemoveArgs ===

impl ContextRemoveArgs {
    fn run(&self) -> Result<(), CommandFailure> {
        let was_used = Contexts::update(|contexts| contexts.remove(&self.name, self.force))?;
        if was_used {
            print_note("no context is in use now");
        }
        write_stdout(&format!("{} removed\n", self.name))
    }
}

/// Returns the kinds of credentials, for a column.
fn kinds(credentials: &Credentials) -> String {
    let token = match credentials.token {
        Some(Token::Text(_)) => Some("token"),
        Some(Token::File(_)) => Some("token file"),
        None => None,
    };
    let identity = credentials.identity.as_ref().map(|_| "certificate");
    let kinds: Vec<_> = token.into_iter().chain(identity).collect();
    if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") }
}

/// Returns a context with the keys of the file, without its token.
fn json(name: &str, context: &Context, is_used: bool) -> Map<String, Value> {
    let Context { server, credentials } = context;
    let file = match &credentials.token {
        Some(Token::File(path)) => Some(path),
        _ => None,
    };
    let (cert, key) = credentials.identity.as_ref().map(|(cert, key)| (cert, key)).unzip();
    let mut object = Map::new();
    object.insert("name".to_owned(), name.into());
    object.insert("in_use".to_owned(), is_used.into());
    object.insert("server".to_owned(), server.as_str().into());
    let is_text = matches!(credentials.token, Some(Token::Text(_)));
    object.insert("has_token".to_owned(), is_text.into());
    object.insert("allow_plaintext_token".to_owned(), credentials.allow_plaintext_token.into());
    let paths =
        [("token_file", file), ("ca", credentials.ca.as_ref()), ("cert", cert), ("key", key)];
    for (key, path) in paths {
        object.extend(path.map(|path| (key.to_owned(), path.as_str().into())));
    }
    object
}

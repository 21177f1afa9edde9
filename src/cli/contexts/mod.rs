//! Contexts: named servers with the credentials for them, in a file of the user.

mod file;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::credentials::{Credentials, Token};
use super::exit::CommandFailure;
use super::values;
use crate::config::{self, io_problem, nearest};

/// Contexts of this user.
#[derive(Debug)]
pub(super) struct Contexts {
    /// The file; `None`: this user has no place for one.
    path: Option<PathBuf>,
    /// Name of the context that `ringq context use` chose.
    current: Option<String>,
    entries: BTreeMap<String, Context>,
}

/// A server, or several, and the credentials for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Context {
    /// URL, or several, separated by commas.
    pub(super) server: String,
    pub(super) credentials: Credentials,
}

// === impl Contexts ===

impl Contexts {
    /// Reads the file, if there is one.
    pub(super) fn read() -> Result<Contexts, CommandFailure> {
        let Some(path) = path() else { return Ok(Contexts::empty(None)) };
        match file::read(&path)? {
            Some(text) => {
                let (current, entries) =
                    text::parse(&text).map_err(|problem| file::mistake(&path, &problem))?;
                Ok(Contexts { path: Some(path), current, entries })
            }
            None => Ok(Contexts::empty(Some(path))),
        }
    }

    /// Changes the file; other commands that change it meanwhile wait.
    pub(super) fn update<T>(
        change: impl FnOnce(&mut Contexts) -> Result<T, CommandFailure>,
    ) -> Result<T, CommandFailure> {
        let Some(path) = path() else {
            let problem = "there is no place for contexts: HOME is not set";
            return Err(CommandFailure::usage(problem).with_hint("name a file with RINGQ_CONTEXTS"));
        };
        let _lock = file::lock(&path)?;
        let mut contexts = Contexts::read()?;
        let result = change(&mut contexts)?;
        file::write(&path, &text::format(contexts.current.as_deref(), &contexts.entries))?;
        Ok(result)
    }

    fn empty(path: Option<PathBuf>) -> Contexts {
        Contexts { path, current: None, entries: BTreeMap::new() }
    }

    /// Returns the file for texts.
    pub(super) fn place(&self) -> String {
        self.path.as_ref().map_or_else(|| "no file".to_owned(), |path| path.display().to_string())
    }

    /// Returns the context of this name.
    pub(super) fn get(&self, name: &str) -> Result<&Context, CommandFailure> {
        self.entries.get(name).ok_or_else(|| self.unknown(name))
    }

    /// Iterates over the contexts by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Context)> {
        self.entries.iter()
    }

    /// Returns the name of the context that commands without `--context` use: that of RINGQ_CONTEXT, else the one of
    /// `ringq context use`.
    pub(super) fn selected(&self) -> Result<Option<String>, CommandFailure> {
        if let Some(name) = config::variable("RINGQ_CONTEXT") {
            if !self.entries.contains_key(&name) {
                let problem = format!("RINGQ_CONTEXT is {name:?}, and there is no such context");
                return Err(CommandFailure::usage(problem).with_hint(self.known_names(&name)));
            }
            return Ok(Some(name));
        }
        Ok(self.current.clone())
    }

    /// Returns whether `ringq context use` chose this context.
    pub(super) fn is_current(&self, name: &str) -> bool {
        self.current.as_deref() == Some(name)
    }

    /// Makes commands use a context.
    pub(super) fn set_current(&mut self, name: &str) -> Result<(), CommandFailure> {
        self.get(name)?;
        self.current = Some(name.to_owned());
        Ok(())
    }

    /// Adds a context; an existing one is only replaced if `replace`.
    pub(super) fn add(
        &mut self,
        name: &str,
        context: Context,
        replace: bool,
    ) -> Result<(), CommandFailure> {
        if self.entries.contains_key(name) && !replace {
            let hint = format!("--replace replaces it; `ringq context show {name}` prints it");
            let problem = format!("there is a context {name} already");
            return Err(CommandFailure::usage(problem).with_hint(hint));
        }
        self.entries.insert(name.to_owned(), context);
        Ok(())
    }

    /// Removes a context; the current one only if `force`. Returns whether it was the current one.
    pub(super) fn remove(&mut self, name: &str, force: bool) -> Result<bool, CommandFailure> {
        self.get(name)?;
        let is_current = self.is_current(name);
        if is_current && !force {
            let hint =
                "use another one first, or add --force: commands go to the default server then";
            let problem = format!("context {name} is in use");
            return Err(CommandFailure::usage(problem).with_hint(hint));
        }
        self.entries.remove(name);
        self.current.take_if(|current| current == name);
        Ok(is_current)
    }

    fn unknown(&self, name: &str) -> CommandFailure {
        CommandFailure::usage(format!("there is no context {name}"))
            .with_hint(self.known_names(name))
    }

    /// Returns the hint for an unknown name.
    fn known_names(&self, name: &str) -> String {
        let names: Vec<_> = self.entries.keys().map(String::as_str).collect();
        match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None if self.entries.is_empty() => {
                "there are none yet: `ringq context add NAME --server URL` adds one".to_owned()
            }
            None => format!("there are {}", names.join(", ")),
        }
    }
}

/// Returns the file of the contexts; `None`: this user has no place for it.
fn path() -> Option<PathBuf> {
    if let Some(path) = config::variable("RINGQ_CONTEXTS") {
        return Some(path.into());
    }
    // A relative directory is to be ignored by the specification of these directories.
    let directory = config::variable("XDG_CONFIG_HOME").map(PathBuf::from);
    let directory = directory.filter(|directory| directory.is_absolute());
    let directory =
        directory.or_else(|| Some(PathBuf::from(config::variable("HOME")?).join(".config")))?;
    Some(directory.join("ringq").join("contexts.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contexts(names: &[&str]) -> Contexts {
        let context = |server: &&str| {
            let credentials = Credentials::default();
            ((*server).to_owned(), Context { server: format!("https://{server}"), credentials })
        };
        let entries = names.iter().map(context).collect();
        Contexts { path: None, current: names.first().map(|name| (*name).to_owned()), entries }
    }

    fn text(failure: &CommandFailure) -> String {
        format!("{failure:?}")
    }

    #[test]
    fn an_unknown_name_leads_to_the_known_ones() {
        let known = contexts(&["prod", "staging"]);
        assert!(text(&known.get("prdo").unwrap_err()).contains("did you mean prod?"));
        assert!(text(&known.get("other").unwrap_err()).contains("there are prod, staging"));
        assert!(text(&contexts(&[]).get("prod").unwrap_err()).contains("there are none yet"));
        assert!(contexts(&["prod"]).set_current("staging").is_err());
    }

    #[test]
    fn mistakes_change_nothing() {
        let mut contexts = contexts(&["prod", "staging"]);
        let other = Context { server: "http://x".to_owned(), credentials: Credentials::default() };
        assert!(contexts.add("prod", other.clone(), false).is_err());
        assert_eq!(contexts.get("prod").unwrap().server, "https://prod");
        assert!(contexts.remove("prod", false).is_err() && contexts.is_current("prod"));
        assert!(!contexts.remove("staging", false).unwrap());
        contexts.add("prod", other, true).unwrap();
        assert_eq!(contexts.get("prod").unwrap().server, "http://x");
        assert!(contexts.remove("prod", true).unwrap());
        assert!(!contexts.is_current("prod") && contexts.get("prod").is_err());
    }
}

//! Settings as text, by key, each with the place it came from.

use std::collections::BTreeMap;

use super::key::KEYS;
use super::mistake::Mistake;
use super::nearest::unknown;
use super::source::Source;
use super::variable::{is_foreign, settings, variable};

/// The settings given on the command line.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--config`: the file to read.
    pub config: Option<String>,
    /// `--shard NAME=URL`, as often as given.
    pub shards: Vec<String>,
    /// Other flags by their key, see [`KEYS`].
    pub values: Vec<(&'static str, String)>,
}

/// The text of a setting.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) text: String,
    pub(super) from: Source,
}

/// The text of a shard.
#[derive(Clone, Debug)]
pub(super) struct FoundShard {
    pub(super) name: String,
    pub(super) url: String,
    pub(super) weight: Option<String>,
    pub(super) state: Option<String>,
    pub(super) from: Source,
}

/// What one place says. Shards are replaced together: a ring is not a sum of places.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    values: BTreeMap<&'static str, Found>,
    pub(super) shards: Vec<FoundShard>,
}

// === impl Layer ===

impl Layer {
    /// The `RINGQ_…` variables among `variables`. An empty one counts as not set.
    pub(super) fn environment(
        variables: impl Iterator<Item = (String, String)>,
        mistakes: &mut Vec<Mistake>,
    ) -> Layer {
        let mut layer = Layer::default();
        let ours = variables.filter(|(name, _)| name.starts_with("RINGQ_"));
        let mut ours: Vec<_> = ours.filter(|(name, value)| !is_foreign(name, value)).collect();
        // The environment has no order; the messages should have one.
        ours.sort_unstable();
        for (name, value) in ours {
            if let Err(problem) = layer.variable(&name, value) {
                mistakes.push(Mistake::new("environment", problem, &Source::Variable(name)));
            }
        }
        layer
    }

    /// The command line; the parser there has already refused unknown flags.
    pub(super) fn flags(flags: &Flags) -> Layer {
        let mut layer = Layer::default();
        let config = flags.config.iter().map(|file| ("config", file));
        for (key, value) in config.chain(flags.values.iter().map(|(key, value)| (*key, value))) {
            let flag = format!("--{}", key.replace('_', "-"));
            layer.insert(key, value.clone(), Source::Flag(flag));
        }
        let from = Source::Flag("--shard".to_owned());
        layer.shards = flags.shards.iter().map(|text| pair(text, from.clone())).collect();
        layer
    }

    /// This layer as that of the built-in file.
    pub(super) fn built_in(mut self) -> Layer {
        self.values.values_mut().for_each(|found| found.from = Source::Default);
        self
    }

    /// This layer with `top` laid over it.
    pub(super) fn under(mut self, top: Layer) -> Layer {
        self.values.extend(top.values);
        if !top.shards.is_empty() {
            self.shards = top.shards;
        }
        self
    }

    pub(super) fn get(&self, key: &str) -> Option<&Found> {
        self.values.get(key)
    }

    pub(super) fn insert(&mut self, key: &'static str, text: String, from: Source) {
        self.values.insert(key, Found { text, from });
    }

    /// Takes one of our variables, or says that it is none.
    fn variable(&mut self, name: &str, value: String) -> Result<(), String> {
        let from = Source::Variable(name.to_owned());
        if name == "RINGQ_SHARDS" {
            self.shards = value.split_whitespace().map(|text| pair(text, from.clone())).collect();
            return Ok(());
        }
        if let Some(key) = KEYS.into_iter().chain(["config"]).find(|key| variable(key) == name) {
            if !value.is_empty() {
                self.insert(key, value, from);
            }
            return Ok(());
        }
        let known = settings();
        Err(unknown("variable", name, known.iter().map(String::as_str)))
    }
}

/// `NAME=URL`; what is missing is empty here and refused when it is read.
fn pair(text: &str, from: Source) -> FoundShard {
    let (name, url) = text.split_once('=').unwrap_or((text, ""));
    let (name, url) = (name.to_owned(), url.to_owned());
    FoundShard { name, url, weight: None, state: None, from }
}

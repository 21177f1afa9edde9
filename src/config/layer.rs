//! Settings as text, by key, each with the place it came from.

use std::collections::BTreeMap;

use super::invalid_setting::InvalidSetting;
use super::keys::KEYS;
use super::nearest::unknown;
use super::source::SettingSource;
use super::variable::{is_foreign, settings, variable};

/// Settings given on the command line.
#[derive(Clone, Debug, Default)]
pub struct ConfigFlags {
    /// `--config`: the file to read.
    pub config: Option<String>,
    /// `--shard NAME=URL`, as often as given.
    pub shards: Vec<String>,
    /// Other flags by their key, see [`KEYS`].
    pub values: Vec<(&'static str, String)>,
}

/// Text of a setting.
#[derive(Clone, Debug)]
pub(super) struct SettingText {
    pub(super) text: String,
    pub(super) source: SettingSource,
}

/// Text of a shard.
#[derive(Clone, Debug)]
pub(super) struct ShardText {
    pub(super) name: String,
    pub(super) url: String,
    pub(super) weight: Option<String>,
    pub(super) state: Option<String>,
    pub(super) source: SettingSource,
}

/// Settings from one place. Shards are replaced together: a ring is not a sum of places.
#[derive(Clone, Debug, Default)]
pub(super) struct ConfigLayer {
    values: BTreeMap<&'static str, SettingText>,
    pub(super) shards: Vec<ShardText>,
}

// === impl ConfigLayer ===

impl ConfigLayer {
    /// Reads the `RINGQ_…` variables among `variables`. An empty one counts as not set.
    pub(super) fn environment(
        variables: impl Iterator<Item = (String, String)>,
        mistakes: &mut Vec<InvalidSetting>,
    ) -> ConfigLayer {
        let mut layer = ConfigLayer::default();
        let ours = variables.filter(|(name, _)| name.starts_with("RINGQ_"));
        let mut ours: Vec<_> = ours.filter(|(name, value)| !is_foreign(name, value)).collect();
        // The environment has no order; the messages need one.
        ours.sort_unstable();
        for (name, value) in ours {
            if let Err(problem) = layer.variable(&name, value) {
                mistakes.push(InvalidSetting::new(
                    "environment",
                    problem,
                    &SettingSource::Environment(name),
                ));
            }
        }
        layer
    }

    /// Reads the command line; the parser there has already refused unknown flags.
    pub(super) fn flags(flags: &ConfigFlags) -> ConfigLayer {
        let mut layer = ConfigLayer::default();
        let config = flags.config.iter().map(|file| ("config", file));
        for (key, value) in config.chain(flags.values.iter().map(|(key, value)| (*key, value))) {
            let flag = format!("--{}", key.replace('_', "-"));
            layer.insert(key, value.clone(), SettingSource::Flag(flag));
        }
        let from = SettingSource::Flag("--shard".to_owned());
        layer.shards = flags.shards.iter().map(|text| parse_shard(text, from.clone())).collect();
        layer
    }

    /// Returns this layer as the layer of the built-in file.
    pub(super) fn into_defaults(mut self) -> ConfigLayer {
        self.values.values_mut().for_each(|found| found.source = SettingSource::Default);
        self
    }

    /// Returns this layer with `top` laid over it.
    pub(super) fn merged_with(mut self, top: ConfigLayer) -> ConfigLayer {
        self.values.extend(top.values);
        if !top.shards.is_empty() {
            self.shards = top.shards;
        }
        self
    }

    pub(super) fn get(&self, key: &str) -> Option<&SettingText> {
        self.values.get(key)
    }

    pub(super) fn insert(&mut self, key: &'static str, text: String, from: SettingSource) {
        self.values.insert(key, SettingText { text, source: from });
    }

    /// Stores one of our variables, or returns an error for an unknown one.
    fn variable(&mut self, name: &str, value: String) -> Result<(), String> {
        let from = SettingSource::Environment(name.to_owned());
        if name == "RINGQ_SHARDS" {
            self.shards =
                value.split_whitespace().map(|text| parse_shard(text, from.clone())).collect();
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

/// Parses `NAME=URL`; a missing part is empty here and refused when it is read.
fn parse_shard(text: &str, from: SettingSource) -> ShardText {
    let (name, url) = text.split_once('=').unwrap_or_default();
    let (name, url) = (name.to_owned(), url.to_owned());
    ShardText { name, url, weight: None, state: None, source: from }
}

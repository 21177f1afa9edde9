//! Settings as text, by key, each with the place it came from.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::mistake::{Mistake, nearest};
use super::source::Source;
use super::variable::{CLIENT, is_foreign};

/// The keys of all settings but the shards, in the order of their documentation. The variable of
/// `http_listen` is `RINGQ_HTTP_LISTEN`, its flag `--http-listen`.
pub const KEYS: [&str; 17] = [
    "listen",
    "http_listen",
    "ready_file",
    "data_dir",
    "redis_ca",
    "redis_cert",
    "redis_key",
    "replica",
    "threads",
    "log_format",
    "log_filter",
    "max_streams",
    "max_concurrent_requests",
    "request_timeout",
    "stream_max_age",
    "drain_delay",
    "shutdown_grace",
];

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

/// The keys of a `[[shard]]` table.
const SHARD_KEYS: [&str; 4] = ["name", "url", "weight", "state"];

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
    shards: Vec<FoundShard>,
}

/// A file while it is taken apart.
struct FileReader<'a> {
    file: &'a str,
    layer: Layer,
    mistakes: &'a mut Vec<Mistake>,
}

// === impl Layer ===

impl Layer {
    /// The built-in file.
    pub(super) fn defaults(text: &str, mistakes: &mut Vec<Mistake>) -> Layer {
        let mut layer = Layer::file("the defaults", text, mistakes);
        layer.values.values_mut().for_each(|found| found.from = Source::Default);
        layer
    }

    /// A TOML file. `file` is how mistakes name it.
    pub(super) fn file(file: &str, text: &str, mistakes: &mut Vec<Mistake>) -> Layer {
        let mut reader = FileReader { file, layer: Layer::default(), mistakes };
        match toml::from_str(text) {
            Ok(table) => reader.table(&table),
            Err(error) => reader.wrong("config", "", syntax_problem(text, &error)),
        }
        reader.layer
    }

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

    pub(super) fn shards(&self) -> &[FoundShard] {
        &self.shards
    }

    fn insert(&mut self, key: &'static str, text: String, from: Source) {
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

// === impl FileReader ===

impl FileReader<'_> {
    fn table(&mut self, table: &Table) {
        for (name, value) in table {
            if name == "shard" {
                self.shards(value);
            } else if let Some(key) = KEYS.into_iter().find(|key| key == name) {
                match scalar(value) {
                    Ok(text) => self.layer.insert(key, text, self.from(name)),
                    Err(problem) => self.wrong(key, name, problem),
                }
            } else {
                let problem = unknown("setting", name, KEYS.into_iter().chain(["shard"]));
                self.wrong(name, name, problem);
            }
        }
    }

    /// `[[shard]]` tables.
    fn shards(&mut self, value: &Value) {
        let tables = value.as_array().map(|tables| tables.iter().map(Value::as_table).collect());
        let Some(tables): Option<Vec<&Table>> = tables.flatten() else {
            let problem = "is not written as [[shard]] tables with name and url".to_owned();
            return self.wrong("shard", "shard", problem);
        };
        for (index, table) in tables.into_iter().enumerate() {
            self.shard(&format!("shard[{index}]"), table);
        }
    }

    fn shard(&mut self, path: &str, table: &Table) {
        for key in table.keys().filter(|key| !SHARD_KEYS.contains(&key.as_str())) {
            // A plain key below [[shard]] belongs to the table; that is easily overlooked.
            let problem = if KEYS.contains(&key.as_str()) {
                "stands below [[shard]], move it above".to_owned()
            } else {
                unknown("setting", key, SHARD_KEYS.into_iter())
            };
            self.wrong(key, &format!("{path}.{key}"), problem);
        }
        let [name, url, weight, state] = SHARD_KEYS.map(|key| self.shard_part(path, table, key));
        for (key, part) in [("name", &name), ("url", &url)] {
            if part.is_none() && !table.contains_key(key) {
                self.wrong("shard", path, format!("has no {key}"));
            }
        }
        if let (Some(name), Some(url)) = (name, url) {
            let from = self.from(path);
            self.layer.shards.push(FoundShard { name, url, weight, state, from });
        }
    }

    fn shard_part(&mut self, path: &str, table: &Table, key: &str) -> Option<String> {
        let part = scalar(table.get(key)?);
        part.map_err(|problem| self.wrong("shard", &format!("{path}.{key}"), problem)).ok()
    }

    fn wrong(&mut self, setting: &str, key: &str, problem: String) {
        let from = self.from(key);
        self.mistakes.push(Mistake::new(setting, problem, &from));
    }

    fn from(&self, key: &str) -> Source {
        Source::File { key: key.to_owned(), file: self.file.to_owned() }
    }
}

/// `NAME=URL`; what is missing is empty here and refused when it is read.
fn pair(text: &str, from: Source) -> FoundShard {
    let (name, url) = text.split_once('=').unwrap_or((text, ""));
    let (name, url) = (name.to_owned(), url.to_owned());
    FoundShard { name, url, weight: None, state: None, from }
}

/// What is wrong with those of `variables` that neither a server nor a client command reads, in words for
/// people at a client command.
pub(super) fn unknown_variables(variables: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let settings = settings();
    let ours =
        variables.filter(|(name, value)| name.starts_with("RINGQ_") && !is_foreign(name, value));
    let names = ours.map(|(name, _)| name).filter(|name| !settings.contains(name));
    // The environment has no order; the messages should have one.
    let names: BTreeSet<String> = names.collect();
    let known = || CLIENT.into_iter().chain(settings.iter().map(String::as_str));
    let problem = |name: &String| match nearest(name, known()) {
        Some(known) => format!("unknown variable {name}, did you mean {known}"),
        None => format!("unknown variable {name}; commands read {}", CLIENT.join(" and ")),
    };
    names.iter().map(problem).collect()
}

/// The variables of all settings.
fn settings() -> Vec<String> {
    KEYS.into_iter().chain(["config", "shards"]).map(variable).collect()
}

/// The variable of a key.
fn variable(key: &str) -> String {
    format!("RINGQ_{}", key.to_uppercase())
}

/// The text of a plain TOML value.
fn scalar(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        other => Err(format!("is of type {}, not text or a whole number", other.type_str())),
    }
}

/// `unknown setting listne, did you mean listen`.
fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    match nearest(name, known) {
        Some(known) => format!("unknown {what} {name}, did you mean {known}"),
        None => format!("unknown {what} {name}; `ringq config` prints the settings"),
    }
}

/// Where the file stops being TOML, on one line, and how it is written instead.
fn syntax_problem(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let number = text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    let said = || error.message().lines().collect::<Vec<_>>().join(", ");
    let problem = plain_problem(line).unwrap_or_else(said);
    format!("is not TOML: line {number}: {problem}")
}

/// The slips that people make who know other formats, in their words rather than a parser's.
fn plain_problem(line: &str) -> Option<String> {
    let line = line.trim();
    if line.starts_with('[') {
        return None;
    }
    let Some((key, value)) = line.split_once('=') else {
        return Some("it is not written as key = \"value\"".to_owned());
    };
    let (key, value) = (key.trim(), value.split('#').next().unwrap_or_default().trim());
    if value.is_empty() {
        return Some(format!("{key} has no value"));
    }
    let is_bare = !value.starts_with(['"', '\'', '[', '{']);
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    (is_bare && !is_number).then(|| format!("text stands in quotes: {key} = \"{value}\""))
}

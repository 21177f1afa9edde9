//! A TOML file as a layer of settings.

use toml::{Table, Value};

use super::invalid_setting::InvalidSetting;
use super::keys::KEYS;
use super::layer::{ConfigLayer, ShardText};
use super::nearest::unknown;
use super::source::SettingSource;

/// Keys of a `[[shard]]` table.
const SHARD_KEYS: [&str; 4] = ["name", "url", "weight", "state"];

/// Reader of one file.
struct FileReader<'a> {
    file: &'a str,
    layer: ConfigLayer,
    mistakes: &'a mut Vec<InvalidSetting>,
}

/// Reads a file with this text. Errors name it as `file`.
pub(super) fn read(file: &str, text: &str, mistakes: &mut Vec<InvalidSetting>) -> ConfigLayer {
    let mut reader = FileReader { file, layer: ConfigLayer::default(), mistakes };
    match toml::from_str(text) {
        Ok(table) => reader.table(&table),
        Err(error) => reader.add_error("config", "", syntax_problem(text, &error)),
    }
    reader.layer
}

// === impl FileReader ===

impl FileReader<'_> {
    fn table(&mut self, table: &Table) {
        for (name, value) in table {
            if name == "shard" {
                self.shards(value);
            } else if let Some(key) = KEYS.into_iter().find(|key| key == name) {
                match scalar(value) {
                    Ok(text) => self.layer.insert(key, text, self.source_of(name)),
                    Err(problem) => self.add_error(key, name, problem),
                }
            } else {
                let problem = unknown("setting", name, KEYS.into_iter().chain(["shard"]));
                self.add_error(name, name, problem);
            }
        }
    }

    /// Reads `[[shard]]` tables.
    fn shards(&mut self, value: &Value) {
        let tables = value.as_array().map(|tables| tables.iter().map(Value::as_table).collect());
        let Some(tables): Option<Vec<&Table>> = tables.flatten() else {
            let problem = "is not written as [[shard]] tables with name and url".to_owned();
            return self.add_error("shard", "shard", problem);
        };
        for (index, table) in tables.into_iter().enumerate() {
            self.shard(&format!("shard[{index}]"), table);
        }
    }

    fn shard(&mut self, path: &str, table: &Table) {
        for key in table.keys().filter(|key| !SHARD_KEYS.contains(&key.as_str())) {
            // In TOML a plain key below [[shard]] belongs to the table; that is easily overlooked.
            let problem = if KEYS.contains(&key.as_str()) {
                "stands below [[shard]], move it above".to_owned()
            } else {
                unknown("setting", key, SHARD_KEYS.into_iter())
            };
            self.add_error(key, &format!("{path}.{key}"), problem);
        }
        let [name, url, weight, state] = SHARD_KEYS.map(|key| self.shard_part(path, table, key));
        for (key, part) in [("name", &name), ("url", &url)] {
            if part.is_none() && !table.contains_key(key) {
                self.add_error("shard", path, format!("has no {key}"));
            }
        }
        if let (Some(name), Some(url)) = (name, url) {
            let from = self.source_of(path);
            self.layer.shards.push(ShardText { name, url, weight, state, source: from });
        }
    }

    fn shard_part(&mut self, path: &str, table: &Table, key: &str) -> Option<String> {
        let part = scalar(table.get(key)?);
        part.map_err(|problem| self.add_error("shard", &format!("{path}.{key}"), problem)).ok()
    }

    fn add_error(&mut self, setting: &str, key: &str, problem: String) {
        let from = self.source_of(key);
        self.mistakes.push(InvalidSetting::new(setting, problem, &from));
    }

    fn source_of(&self, key: &str) -> SettingSource {
        SettingSource::File { key: key.to_owned(), file: self.file.to_owned() }
    }
}

/// Returns the text of a plain TOML value.
fn scalar(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Boolean(switch) => Ok(switch.to_string()),
        other => {
            Err(format!("is of type {}, not text, a whole number or a boolean", other.type_str()))
        }
    }
}

/// Describes a syntax error of TOML on one line: its place, and the correct form.
fn syntax_problem(text: &str, error: &toml::de::Error) -> String {
    let start = error.span().map_or(0, |span| span.start.min(text.len()));
    let number = text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    let original = || error.message().lines().collect::<Vec<_>>().join(", ");
    let problem = plain_problem(line).unwrap_or_else(original);
    format!("is not TOML: line {number}: {problem}")
}

/// Describes mistakes that are common for users of other formats, in plain words instead of those of a parser.
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
    // A url may contain a password.
    let shown = if value.contains('@') || value.contains("://") { "…" } else { value };
    (is_bare && !is_number).then(|| format!("text stands in quotes: {key} = \"{shown}\""))
}

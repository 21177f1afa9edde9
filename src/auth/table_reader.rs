//! Tables of a file of identities: what each kind of them has in common, with the mistakes that are found.

use toml::{Table, Value};

/// Maximum number of bytes of a name.
const NAME_BYTES_MAX: usize = 64;

/// Reader of one table. It goes on behind a mistake, so that none hides another.
pub(super) struct TableReader<'t> {
    pub(super) table: &'t Table,
    place: String,
    problems: Vec<String>,
}

/// Reads the `[[kind]]` tables of a file, which have a name and no other keys than `keys`. Returns each with its place.
/// `read` gets the name and returns `None` only behind a mistake.
///
/// # Errors
/// A text for each mistake, which begins with its place.
pub(super) fn read_tables<'t, T>(
    file: &'t Table,
    kind: &str,
    keys: &[&str],
    mut read: impl FnMut(&mut TableReader<'t>, String) -> Option<T>,
) -> Result<Vec<(String, T)>, Vec<String>> {
    let Some(value) = file.get(kind) else { return Ok(Vec::new()) };
    let tables = value.as_array().map(|tables| tables.iter().map(Value::as_table).collect());
    let Some(tables): Option<Vec<&Table>> = tables.flatten() else {
        return Err(vec![format!("{kind}: is not written as [[{kind}]] tables")]);
    };
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for (index, table) in tables.into_iter().enumerate() {
        let place = format!("{kind}[{index}]");
        let mut reader = TableReader { table, place, problems: Vec::new() };
        let name = reader.name();
        reader.check_keys(keys);
        let item = read(&mut reader, name);
        problems.append(&mut reader.problems);
        found.extend(item.map(|item| (reader.place, item)));
    }
    if problems.is_empty() { Ok(found) } else { Err(problems) }
}

// === impl TableReader ===

impl<'t> TableReader<'t> {
    /// Reads the name, which is part of the place from then on.
    fn name(&mut self) -> String {
        let name = self.table.get("name").and_then(Value::as_str).unwrap_or_default();
        let is_valid = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-:/@".contains(c));
        if !is_valid {
            self.problem("name", "must be 1 to 64 letters, digits and . _ - : / @");
        }
        if !name.is_empty() {
            self.place = format!("{} ({name})", self.place);
        }
        name.to_owned()
    }

    fn check_keys(&mut self, keys: &[&str]) {
        for key in self.table.keys().filter(|key| !keys.contains(&key.as_str())) {
            self.problem(key, &format!("there is no such key; keys are {}", keys.join(", ")));
        }
    }

    /// Reads a list of texts, which may be missing.
    pub(super) fn texts(&mut self, key: &str) -> Vec<&'t str> {
        let texts = match self.table.get(key) {
            None => Some(Vec::new()),
            Some(value) => value.as_array().and_then(|v| v.iter().map(Value::as_str).collect()),
        };
        texts.unwrap_or_else(|| {
            self.problem(key, "must be a list of texts, as in [\"a\", \"b\"]");
            Vec::new()
        })
    }

    /// Notes a mistake.
    pub(super) fn problem(&mut self, key: &str, text: &str) {
        self.problems.push(format!("{}.{key}: {text}", self.place));
    }
}

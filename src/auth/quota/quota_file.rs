//! Quotas as text: the key `quota` of an `[[identity]]` table, and `[[namespace]]` tables.

use toml::{Table, Value};

use super::super::identity_file::{self, QUOTA_KEY};
use super::{IdentityQuota, NamespaceQuota, QuotaKind, Quotas, Rate};
use crate::domain::TopicName;

/// Key of the tables of namespaces.
pub const KEY: &str = "namespace";
/// Maximum number of namespaces with a quota: each has a series in the metrics.
pub const NAMESPACES_MAX: usize = 1_000;
/// Keys of a namespace.
const NAMESPACE_KEYS: [&str; 4] = ["name", "waiting_jobs", "stored_bytes", "topic_settings"];

/// Reader of one file.
#[derive(Default)]
struct QuotaReader {
    quotas: Quotas,
    problems: Vec<String>,
}

/// Reads the quotas of a file.
///
/// # Errors
/// A text for each mistake, which begins with its place. Tables of identities that are none are reported elsewhere.
pub fn read(table: &Table) -> Result<Quotas, Vec<String>> {
    let mut reader = QuotaReader::default();
    for (index, identity) in tables(table.get(identity_file::KEY)).enumerate() {
        reader.identity(index, identity);
    }
    let is_list = |value: &Value| value.as_array().is_some_and(|v| v.iter().all(Value::is_table));
    match table.get(KEY) {
        Some(value) if !is_list(value) => {
            reader.problems.push(format!("{KEY}: is not written as [[{KEY}]] tables"));
        }
        value => {
            for (index, namespace) in tables(value).enumerate() {
                reader.namespace(index, namespace);
            }
        }
    }
    if reader.problems.is_empty() { Ok(reader.quotas) } else { Err(reader.problems) }
}

fn tables(value: Option<&Value>) -> impl Iterator<Item = &Table> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_table)
}

// === impl QuotaReader ===

impl QuotaReader {
    fn identity(&mut self, index: usize, table: &Table) {
        let name = table.get("name").and_then(Value::as_str).unwrap_or_default();
        let Some(value) = table.get(QUOTA_KEY) else { return };
        let place = format!("{}[{index}] ({name}).{QUOTA_KEY}", identity_file::KEY);
        let Some(figures) = value.as_table() else {
            let text = "must be a table like { jobs_per_second = 100 }";
            self.problems.push(format!("{place}: {text}"));
            return;
        };
        let mut quota = IdentityQuota::default();
        for (key, value) in figures {
            let mut rate = |to: &mut Option<Rate>| *to = self.rate(&place, key, value);
            match key.as_str() {
                key if key == QuotaKind::Calls.name() => rate(&mut quota.calls),
                key if key == QuotaKind::Jobs.name() => rate(&mut quota.jobs),
                key if key == QuotaKind::Bytes.name() => rate(&mut quota.bytes),
                key if key == QuotaKind::Streams.name() => {
                    quota.streams = self.count(&place, key, value, u64::from(u32::MAX));
                }
                _ => {
                    let text = "there is no such key; keys are calls_per_second, jobs_per_second, bytes_per_second \
                                and streams";
                    self.problems.push(format!("{place}.{key}: {text}"));
                }
            }
        }
        self.quotas.identities.insert(name.to_owned(), quota);
    }

    fn namespace(&mut self, index: usize, table: &Table) {
        let name = table.get("name").and_then(Value::as_str).unwrap_or_default();
        let place = format!("{KEY}[{index}]");
        if TopicName::try_new(name).is_err() || !name.ends_with(identity_file::SEPARATORS) {
            let text = "must be the beginning of topic names and end in . : or -, as in \"shop.\"";
            self.problems.push(format!("{place}.name: {text}"));
        }
        let place = format!("{place} ({name})");
        let mut quota = NamespaceQuota::default();
        for (key, value) in table {
            match key.as_str() {
                "name" => {}
                key if key == QuotaKind::WaitingJobs.name() => {
                    quota.waiting_jobs = self.count(&place, key, value, i64::MAX.unsigned_abs());
                }
                key if key == QuotaKind::StoredBytes.name() => {
                    quota.stored_bytes = self.count(&place, key, value, i64::MAX.unsigned_abs());
                }
                key if key == QuotaKind::TopicSettings.name() => {
                    quota.topic_settings = self.count(&place, key, value, i64::MAX.unsigned_abs());
                }
                _ => {
                    let keys = NAMESPACE_KEYS.join(", ");
                    let text = format!("there is no such key; keys are {keys}");
                    self.problems.push(format!("{place}.{key}: {text}"));
                }
            }
        }
        if self.quotas.namespaces.insert(name.to_owned(), quota).is_some() {
            self.problems.push(format!("{place}: another table has this name, too"));
        }
    }

    fn rate(&mut self, place: &str, key: &str, value: &Value) -> Option<Rate> {
        let number = value.as_float().or_else(|| Some(value.as_integer()? as f64));
        let rate = number.and_then(Rate::per_second);
        if rate.is_none() {
            self.problems.push(format!("{place}.{key}: must be a number from 0.001 to 1e12"));
        }
        rate
    }

    fn count<N: TryFrom<u64>>(
        &mut self,
        place: &str,
        key: &str,
        value: &Value,
        max: u64,
    ) -> Option<N> {
        let number = value.as_integer().and_then(|number| u64::try_from(number).ok());
        let count = number.filter(|number| (1..=max).contains(number));
        if count.is_none() {
            self.problems.push(format!("{place}.{key}: must be a whole number from 1 to {max}"));
        }
        count.and_then(|count| N::try_from(count).ok())
    }
}

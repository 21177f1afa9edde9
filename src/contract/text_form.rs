//! Values of fields as people write and read them, in TOML files, flags and outputs. The descriptor of a field has its
//! type; its rule is checked once the message is whole.

use std::time::Duration;

use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value,
};
use toml::{Table, Value as Toml};

use super::duration_text::{parse_duration, show_duration};
use super::time::to_duration;
use super::{Checks, FieldPath};

/// Full name of the message that is a duration.
const DURATION: &str = "google.protobuf.Duration";

/// Fields of a message by their keys in a table.
pub(super) type TableKeys = Vec<(String, FieldDescriptor)>;

/// Reads a table into the fields of a message that have these keys.
pub(super) fn read_table(
    checks: &mut Checks,
    path: FieldPath<'_>,
    table: &Table,
    keys: &TableKeys,
    message: &mut DynamicMessage,
) {
    for (key, given) in table {
        if let Some((_, field)) = keys.iter().find(|(known, _)| known == key) {
            read_field(checks, path, field, given, message);
        } else {
            let keys: Vec<_> = keys.iter().map(|(key, _)| key.as_str()).collect();
            let text = format!("there is no such key; keys are {}", keys.join(", "));
            checks.invalid(path.field(key), text);
        }
    }
}

/// Reads the text of a flag into the field at `fields` of a message. Items of lists and maps are separated by commas.
pub(super) fn read_text(
    checks: &mut Checks,
    fields: &[&str],
    text: &str,
    message: &mut DynamicMessage,
) {
    let [name, parts @ ..] = fields else { return };
    let field = message.descriptor().get_field_by_name(name);
    let Some(field) = checks.check(FieldPath::ROOT, field.ok_or("there is no such field")) else {
        return;
    };
    if parts.is_empty() {
        read_field(checks, FieldPath::ROOT, &field, &to_toml(&field, text), message);
    } else if let Some(part) = message.get_field_mut(&field).as_message_mut() {
        read_text(checks, parts, text, part);
    }
}

/// Returns the text of a flag as a file has it.
fn to_toml(field: &FieldDescriptor, text: &str) -> Toml {
    let item = |kind: &Kind, text: &str| match kind {
        Kind::Int32 | Kind::Int64 | Kind::Double | Kind::Bool => {
            text.parse().unwrap_or_else(|_| Toml::String(text.to_owned()))
        }
        _ => Toml::String(text.to_owned()),
    };
    let items = text.split(',').map(str::trim);
    match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let kind = entry.map_entry_value_field().kind();
            let entry = |text: &str| {
                let (key, value) = text.rsplit_once('=').unwrap_or((text, ""));
                (key.to_owned(), item(&kind, value))
            };
            Toml::Table(items.map(entry).collect())
        }
        kind if field.is_list() => Toml::Array(items.map(|text| item(&kind, text)).collect()),
        kind => item(&kind, text),
    }
}

fn read_field(
    checks: &mut Checks,
    path: FieldPath<'_>,
    field: &FieldDescriptor,
    given: &Toml,
    message: &mut DynamicMessage,
) {
    let here = path.field(field.name());
    let read = match (field.kind(), given) {
        (Kind::Message(entry), Toml::Table(table)) if field.is_map() => {
            let kind = entry.map_entry_value_field().kind();
            let entries = table.iter().filter_map(|(key, given)| {
                let value = plain(&kind, given).map_err(|problem| format!("{key:?}: {problem}"));
                Some((MapKey::String(key.clone()), checks.check(here, value)?))
            });
            Ok(Value::Map(entries.collect()))
        }
        (kind, Toml::Array(items)) if field.is_list() => {
            let items = items.iter().enumerate().filter_map(|(index, given)| {
                checks.check(path.item(field.name(), index), plain(&kind, given))
            });
            Ok(Value::List(items.collect()))
        }
        (kind, _) if field.is_list() => {
            Err(format!("must be a list, of which each item is {}", form(&kind)))
        }
        (Kind::Message(part), Toml::Table(table)) if part.full_name() != DURATION => {
            let keys = part.fields().map(|field| (field.name().to_owned(), field)).collect();
            let mut message = DynamicMessage::new(part);
            read_table(checks, here, table, &keys, &mut message);
            Ok(Value::Message(message))
        }
        (kind, _) => plain(&kind, given).and_then(|value| counted(field, value)),
    };
    if let Some(value) = checks.check(here, read) {
        message.set_field(field, value);
    }
}

/// Reads a value that is neither a list nor a table.
fn plain(kind: &Kind, given: &Toml) -> Result<Value, String> {
    let value = match (kind, given) {
        (Kind::Int32, Toml::Integer(number)) => {
            let range = || format!("must be {} to {}", i32::MIN, i32::MAX);
            return i32::try_from(*number).map(Value::I32).map_err(|_| range());
        }
        (Kind::Message(part), Toml::String(text)) if part.full_name() == DURATION => {
            let mut message = DynamicMessage::new(part.clone());
            let duration = to_duration(parse_duration(text.trim())?);
            let read = message.transcode_from(&duration).map(|()| Value::Message(message));
            return read.map_err(|error| error.to_string());
        }
        (Kind::Enum(names), Toml::String(text)) => {
            let chosen = choices(names).into_iter().find(|(name, _)| name == text);
            chosen.map(|(_, number)| Value::EnumNumber(number))
        }
        (Kind::Int64, Toml::Integer(number)) => Some(Value::I64(*number)),
        (Kind::Double, Toml::Integer(number)) => Some(Value::F64(*number as f64)),
        (Kind::Double, Toml::Float(number)) => Some(Value::F64(*number)),
        (Kind::Bool, Toml::Boolean(switch)) => Some(Value::Bool(*switch)),
        (Kind::String, Toml::String(text)) => Some(Value::String(text.clone())),
        _ => None,
    };
    value.ok_or_else(|| format!("must be {}", form(kind)))
}

/// Refuses the 0 that sets nothing: it may be meant as a value.
fn counted(field: &FieldDescriptor, value: Value) -> Result<Value, String> {
    let is_number = matches!(value, Value::I32(_) | Value::I64(_) | Value::F64(_));
    if is_number && !field.supports_presence() && value.is_default_for_field(field) {
        return Err("must not be 0; leave it out for the default".to_owned());
    }
    Ok(value)
}

/// Returns the form of a value in a file.
fn form(kind: &Kind) -> String {
    match kind {
        Kind::Int32 | Kind::Int64 => "a whole number".to_owned(),
        Kind::Double => "a number".to_owned(),
        Kind::Bool => "true or false".to_owned(),
        Kind::Message(part) if part.full_name() == DURATION => {
            "a duration in quotes, like \"30s\" or \"1h30m\"".to_owned()
        }
        Kind::Message(_) => "a table".to_owned(),
        Kind::Enum(names) => {
            let names = choices(names).into_iter().map(|(name, _)| format!("{name:?}"));
            names.collect::<Vec<_>>().join(" or ")
        }
        _ => "a text in quotes".to_owned(),
    }
}

/// Returns the values of an enumeration with their names in texts, like `drop-oldest`, without the unset one.
pub(super) fn choices(names: &EnumDescriptor) -> Vec<(String, i32)> {
    let unset = names.default_value();
    let prefix = unset.name().trim_end_matches("UNSPECIFIED");
    let text = |name: &str| name.trim_start_matches(prefix).to_lowercase().replace('_', "-");
    let values = names.values().filter(|value| value.number() != unset.number());
    values.map(|value| (text(value.name()), value.number())).collect()
}

/// Returns the text of a field of a message; empty if it is not set.
pub(super) fn show_field(message: &DynamicMessage, name: &str) -> String {
    let field = message.descriptor().get_field_by_name(name);
    let field = field.filter(|field| message.has_field(field));
    field.map(|field| show(&field.kind(), &message.get_field(&field))).unwrap_or_default()
}

fn show(kind: &Kind, value: &Value) -> String {
    let joined =
        |texts: &mut dyn Iterator<Item = String>, by: &str| texts.collect::<Vec<_>>().join(by);
    match (value, kind) {
        (Value::List(items), _) => joined(&mut items.iter().map(|item| show(kind, item)), "/"),
        (Value::Map(entries), Kind::Message(entry)) => {
            let kind = entry.map_entry_value_field().kind();
            let entry = |(key, value): (&MapKey, &Value)| {
                format!("{}={}", key.as_str().unwrap_or_default(), show(&kind, value))
            };
            let mut entries: Vec<_> = entries.iter().map(entry).collect();
            entries.sort_unstable();
            entries.join(", ")
        }
        (Value::Message(message), Kind::Message(part)) if part.full_name() == DURATION => {
            let span = message.transcode_to::<prost_types::Duration>().ok();
            let duration = span.and_then(|span| Duration::try_from(span).ok());
            duration.map(show_duration).unwrap_or_default()
        }
        (Value::Message(message), _) => {
            let part = |(field, value): (FieldDescriptor, &Value)| {
                format!("{} {}", field.name(), show(&field.kind(), value))
            };
            joined(&mut message.fields().map(part), ", ")
        }
        (Value::EnumNumber(number), Kind::Enum(names)) => {
            let name = choices(names).into_iter().find(|(_, known)| known == number);
            name.map_or_else(|| number.to_string(), |(name, _)| name)
        }
        (Value::String(text), _) => text.clone(),
        (Value::I32(number), _) => number.to_string(),
        (Value::I64(number), _) => number.to_string(),
        (Value::F64(number), _) => number.to_string(),
        (Value::Bool(switch), _) => switch.to_string(),
        _ => String::new(),
    }
}

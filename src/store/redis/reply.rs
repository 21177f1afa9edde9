//! Parses replies of scripts. A reply of a form that no script returns is an error, never a panic.

use bytes::Bytes;
use deadpool_redis::redis::Value;

use crate::domain::Time;
use crate::store::{Error, Result};

/// Elements of a reply, taken one by one.
pub(super) struct ScriptReply(std::vec::IntoIter<Value>);

pub(super) fn unexpected(what: &str) -> Error {
    Error::Corrupt(format!("a script returned an unexpected reply: {what} was expected"))
}

/// Parses a whole number.
pub(super) fn number(value: &Value) -> Result<i64> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => Err(unexpected("a number")),
    }
}

/// Parses bytes, or none.
pub(super) fn bytes(value: Value) -> Result<Option<Bytes>> {
    match value {
        Value::BulkString(bytes) => Ok(Some(Bytes::from(bytes))),
        Value::Nil => Ok(None),
        _ => Err(unexpected("bytes")),
    }
}

// === impl ScriptReply ===

impl ScriptReply {
    pub(super) fn new(value: Value) -> Result<ScriptReply> {
        match value {
            Value::Array(values) => Ok(ScriptReply(values.into_iter())),
            _ => Err(unexpected("a list")),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    pub(super) fn value(&mut self) -> Result<Value> {
        self.0.next().ok_or_else(|| unexpected("a longer list"))
    }

    pub(super) fn number(&mut self) -> Result<i64> {
        number(&self.value()?)
    }

    pub(super) fn count(&mut self) -> Result<u64> {
        u64::try_from(self.number()?).map_err(|_| unexpected("a count"))
    }

    pub(super) fn time(&mut self) -> Result<Time> {
        self.number().map(Time)
    }

    /// Takes a time, where 0 is none.
    pub(super) fn maybe_time(&mut self) -> Result<Option<Time>> {
        Ok(Some(self.time()?).filter(|time| time.0 != 0))
    }

    pub(super) fn bytes(&mut self) -> Result<Bytes> {
        bytes(self.value()?)?.ok_or_else(|| unexpected("bytes"))
    }

    pub(super) fn maybe_bytes(&mut self) -> Result<Option<Bytes>> {
        bytes(self.value()?)
    }

    pub(super) fn text(&mut self) -> Result<String> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| unexpected("text"))
    }

    pub(super) fn list(&mut self) -> Result<ScriptReply> {
        ScriptReply::new(self.value()?)
    }

    /// Takes the number of elements that follow in the reply.
    pub(super) fn length(&mut self) -> Result<usize> {
        usize::try_from(self.number()?).map_err(|_| unexpected("a count"))
    }

    /// Takes `count` elements, as bytes.
    pub(super) fn some_bytes(&mut self, count: usize) -> Result<Vec<Bytes>> {
        (0..count).map(|_| self.bytes()).collect()
    }

    /// Takes all remaining elements, as bytes.
    pub(super) fn all_bytes(self) -> Result<Vec<Bytes>> {
        self.0.map(|value| bytes(value)?.ok_or_else(|| unexpected("bytes"))).collect()
    }
}

//! Documents: stored by version, with their effect on claims.

use tokio::time::Instant;

use crate::domain::{DocumentName, GroupName, PolicyEffect, limit};
use crate::store::{
    DocumentHorizon, DocumentRemoval, DocumentWrite, DocumentWriteResult, DocumentsPage,
    GroupSetting, Result, StoredDocument, TopicEffect,
};

use super::script::{ScriptCall, Verb};
use super::{ConnectionLane, RedisStore};

impl RedisStore {
    /// Implements [`Store::write_documents`](crate::store::Store::write_documents).
    pub(super) async fn write_documents(
        &self,
        documents: Vec<DocumentWrite>,
        until: Option<Instant>,
    ) -> Result<Vec<DocumentWriteResult>> {
        let mut call = self.shard.write_call(Verb::WriteDocuments, until).await?;
        for DocumentWrite { name, expected, version, is_live, body, effect } in &documents {
            call.arg(name.to_string()).arg(*expected).arg(*version);
            call.arg(u8::from(*is_live)).arg(&body[..]);
            match effect {
                None => _ = call.arg(""),
                Some(effect) => add_effect(&mut call, effect),
            }
        }
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        reply.time()?;
        let result = |_| {
            let is_written = reply.number()? == 1;
            Ok(DocumentWriteResult { is_written, version: reply.count()? })
        };
        (0..documents.len()).map(result).collect()
    }

    /// Implements [`Store::documents`](crate::store::Store::documents).
    pub(super) async fn documents(&self, after: u64, limit: usize) -> Result<DocumentsPage> {
        let mut call = self.call(Verb::Documents);
        call.arg(after).arg(limit.min(limit::CALL_JOBS_MAX));
        let mut reply = self.run(ConnectionLane::Read, &call).await?;
        let last_sequence = reply.count()?;
        let horizon = DocumentHorizon { version: reply.count()?, sequence: reply.count()? };
        let (mut documents, mut read_to, mut has_unknown) = (Vec::new(), None, false);
        while !reply.is_empty() {
            let (name, sequence, value) = (reply.text()?, reply.count()?, reply.bytes()?);
            read_to = Some(sequence);
            let Some((version, body)) = parse(&value) else {
                tracing::error!(document = %name, "a stored document is damaged and is skipped");
                continue;
            };
            match DocumentName::stored(&name) {
                Some(name) => {
                    documents.push(StoredDocument { name, version, body: value.slice(body..) });
                }
                None => has_unknown = true,
            }
        }
        let read_to = read_to.unwrap_or(last_sequence);
        Ok(DocumentsPage { documents, has_unknown, read_to, last_sequence, horizon })
    }

    /// Implements [`Store::forget_documents`](crate::store::Store::forget_documents).
    pub(super) async fn forget_documents(
        &self,
        removal: DocumentRemoval,
        until: Option<Instant>,
    ) -> Result<bool> {
        let mut call = self.shard.write_call(Verb::ForgetDocuments, until).await?;
        call.arg(removal.last_sequence).arg(removal.expected).arg(removal.horizon);
        for (name, version) in &removal.documents {
            call.arg(name.to_string()).arg(*version);
        }
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        reply.time()?;
        Ok(reply.number()? == 1)
    }
}

fn add_effect(call: &mut ScriptCall, effect: &TopicEffect) {
    let TopicEffect { topic, policy, limits_bytes, groups } = effect;
    let (code, pause_end) = match policy {
        PolicyEffect::Deliver => ("d", 0),
        PolicyEffect::Pause { until } => ("p", until.map_or(0, |until| until.0)),
        PolicyEffect::Release => ("r", 0),
        PolicyEffect::Forget => ("f", 0),
    };
    let limit = limits_bytes.map_or("", |limits| if limits { "1" } else { "0" });
    call.arg(topic.as_str()).arg(format!("{code}{limit}")).arg(pause_end).arg(groups.len());
    for setting in groups {
        let GroupSetting { group, weight: _, paused } = &setting;
        call.arg(GroupName::text(group.as_ref()))
            .arg(setting.valid_weight())
            .arg(u8::from(*paused));
    }
}

/// Parses `<version> <sequence> <live> <body>`; returns the version, and the place where the body begins.
fn parse(value: &[u8]) -> Option<(u64, usize)> {
    let mut parts = value.splitn(4, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse::<u64>().ok();
    let (version, _sequence, _live) = (number()?, number()?, number()?);
    Some((version, value.len() - parts.next()?.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_document_is_read_with_any_bytes_in_it() {
        assert_eq!(parse(b"3 17 1 a b \xff"), Some((3, 7)));
        assert_eq!(parse(b"3 17 0 "), Some((3, 7)), "an empty body");
        for damaged in [&b""[..], b"3 17 1", b"x 17 1 a", b"3"] {
            assert_eq!(parse(damaged), None);
        }
    }
}

//! Access of one call: its caller and its RPC against the topics that it names or shows.

use std::sync::Arc;

use http::Extensions;

use crate::audit::AuditNote;
use crate::auth::{Caller, Denial, Identity, IdentityMeter, RpcScope, StreamSlot, rule};
use crate::contract::enums::ReadView;
use crate::domain::{JobKey, Receipt, TopicName, TopicPattern};
use crate::rpc::Rpc;

use super::status::RpcError;

/// Access of one call.
#[derive(Clone, Debug)]
pub(super) struct CallAccess {
    caller: Caller,
    rpc: Rpc,
    /// Note for the audit log, if there is one.
    note: Option<AuditNote>,
}

// === impl CallAccess ===

impl CallAccess {
    /// Returns the access of a call of `rpc`, whose layers have put its caller into `extensions`.
    ///
    /// # Errors
    /// INTERNAL, if they have not: nothing is allowed then.
    pub(super) fn of(extensions: &Extensions, rpc: Rpc) -> Result<CallAccess, RpcError> {
        let caller = extensions.get::<Caller>().cloned().ok_or_else(RpcError::internal)?;
        Ok(CallAccess { caller, rpc, note: extensions.get::<AuditNote>().cloned() })
    }

    /// Returns the caller.
    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Takes the place of a stream or a waiting Pull; `None`: the caller has no limit.
    pub(super) fn open_stream(&self) -> Result<Option<StreamSlot>, RpcError> {
        let opened = self.caller.meter().map(IdentityMeter::open_stream).transpose();
        opened.map_err(|exceeded| RpcError::quota_exceeded(&exceeded))
    }

    /// Allows or refuses to touch a topic.
    pub(super) fn touch(&self, topic: &TopicName) -> Result<(), RpcError> {
        self.check(topic).map_err(|denial| self.denied(&denial, topic))
    }

    /// Allows or refuses to touch a job. One outside of the namespaces of the caller does not exist for it.
    pub(super) fn touch_job(&self, key: &JobKey) -> Result<(), RpcError> {
        if let Some(note) = &self.note {
            note.job(key.topic.as_str(), key.id.as_str());
        }
        self.check(&key.topic).map_err(|denial| {
            if let Some(note) = &self.note {
                note.denied_job(key.topic.as_str(), key.id.as_str());
            }
            match denial {
                Denial::OutsideNamespaces => RpcError::job_not_found(key),
                denial => self.error(&denial, &key.topic),
            }
        })
    }

    /// Allows or refuses to touch a topic that may exist. One outside of the namespaces of the caller does not exist
    /// for it.
    pub(super) fn touch_existing(&self, topic: &TopicName) -> Result<(), RpcError> {
        self.check(topic).map_err(|denial| match denial {
            Denial::OutsideNamespaces => {
                self.note_denied(topic.as_str());
                RpcError::topic_not_found(topic)
            }
            denial => self.denied(&denial, topic),
        })
    }

    /// Returns the allowed part of the patterns of a subscription. A name has to be allowed, and of a glob some part.
    pub(super) fn narrow(&self, asked: Vec<TopicPattern>) -> Result<Vec<TopicPattern>, RpcError> {
        for pattern in &asked {
            if let Some(note) = &self.note {
                note.topic(&pattern.to_string());
            }
        }
        let Some(identity) = self.caller.identity() else { return Ok(asked) };
        let mut allowed = Vec::with_capacity(asked.len());
        for (index, pattern) in asked.iter().enumerate() {
            let part = identity.allowed_part(self.rpc, pattern);
            if part.is_empty() {
                let error = match pattern {
                    TopicPattern::Exact(topic) => match identity.may_touch(self.rpc, topic) {
                        Err(denial) => self.denied(&denial, topic),
                        Ok(_) => RpcError::internal(),
                    },
                    TopicPattern::Prefix(_) => {
                        self.note_denied(&pattern.to_string());
                        RpcError::permission_denied(&self.caller, &Denial::NoPattern(self.rpc))
                    }
                };
                return Err(error.with_field(&format!("topics[{index}]")));
            }
            for part in part {
                if !allowed.contains(&part) {
                    allowed.push(part);
                }
            }
        }
        Ok(allowed)
    }

    /// Returns whether all patterns of a worker may be shown.
    pub(super) fn shows_patterns(&self, patterns: &[TopicPattern]) -> bool {
        self.shown_part(patterns.to_vec()) == patterns
    }

    /// Returns the part of patterns that may be shown.
    pub(super) fn shown_part(&self, patterns: Vec<TopicPattern>) -> Vec<TopicPattern> {
        let Some(identity) = self.caller.identity() else { return patterns };
        patterns.iter().flat_map(|pattern| identity.allowed_part(self.rpc, pattern)).collect()
    }

    /// Returns whether the job of a receipt may be settled. One that may not does not exist for the caller.
    pub(super) fn settles(&self, receipt: &Receipt) -> bool {
        if let Some(note) = &self.note {
            note.job(receipt.key.topic.as_str(), receipt.key.id.as_str());
        }
        let may = self.check(&receipt.key.topic).is_ok();
        if let Some(note) = self.note.as_ref().filter(|_| !may) {
            note.denied_job(receipt.key.topic.as_str(), receipt.key.id.as_str());
        }
        may
    }

    /// Counts receipts of these jobs that no server has made, and adds them to the line in the audit log.
    pub(super) fn note_forged(&self, jobs: &[JobKey]) {
        if let Some(meter) = self.caller.meter() {
            meter.forged_receipts(jobs.len() as u64);
        }
        for key in jobs {
            if let Some(note) = &self.note {
                note.job(key.topic.as_str(), key.id.as_str());
                note.denied_job(key.topic.as_str(), key.id.as_str());
            }
        }
    }

    /// Returns the view of jobs of a topic: without a right to their payloads the basic one, unless the call asks for
    /// the full one, which is refused then.
    pub(super) fn view(
        &self,
        topic: &TopicName,
        view: ReadView,
        asked: i32,
    ) -> Result<ReadView, RpcError> {
        match view {
            ReadView::Basic => Ok(view),
            _ if self.may_read_payloads(topic) => Ok(view),
            _ if asked == 0 => Ok(ReadView::Basic),
            _ => Err(self.payloads_denied(topic).with_field("view")),
        }
    }

    /// Allows or refuses the payloads of a topic.
    pub(super) fn touch_payloads(&self, topic: &TopicName) -> Result<(), RpcError> {
        match self.may_read_payloads(topic) {
            true => Ok(()),
            false => Err(self.payloads_denied(topic)),
        }
    }

    /// Adds a shard that the call changes to its line in the audit log.
    pub(super) fn note_shard(&self, shard: &str) {
        if let Some(note) = &self.note {
            note.shard(shard);
        }
    }

    /// Adds a job that the call changes to its line in the audit log.
    pub(super) fn note_job(&self, topic: &TopicName, id: &str) {
        if let Some(note) = &self.note {
            note.job(topic.as_str(), id);
        }
    }

    /// Adds the number of jobs that the call has changed, which it does not name, to its line in the audit log.
    pub(super) fn note_jobs_count(&self, count: u64) {
        if let Some(note) = &self.note {
            note.jobs_count(usize::try_from(count).unwrap_or(usize::MAX));
        }
    }

    /// Returns whether the RPC shows topics, rather than being about some.
    fn shows_topics(&self) -> bool {
        rule(self.rpc).scope == RpcScope::Shown
    }

    /// Returns the access of the same caller to another RPC.
    pub(super) fn to(&self, rpc: Rpc) -> CallAccess {
        CallAccess { caller: self.caller.clone(), rpc, note: self.note.clone() }
    }

    fn check(&self, topic: &TopicName) -> Result<(), Denial> {
        if let Some(note) = self.note.as_ref().filter(|_| !self.shows_topics()) {
            note.topic(topic.as_str());
        }
        match self.caller.identity() {
            Some(identity) => identity.may_touch(self.rpc, topic).map(drop),
            None => Ok(()),
        }
    }

    /// Returns the error of a topic that is denied, and adds the topic to the line in the audit log.
    fn denied(&self, denial: &Denial, topic: &TopicName) -> RpcError {
        self.note_denied(topic.as_str());
        self.error(denial, topic)
    }

    fn may_read_payloads(&self, topic: &TopicName) -> bool {
        let may = |identity: &Arc<Identity>| identity.may_read_payloads(topic);
        self.caller.identity().is_none_or(may)
    }

    fn payloads_denied(&self, topic: &TopicName) -> RpcError {
        self.note_denied(topic.as_str());
        RpcError::payloads_denied(&self.caller, topic)
    }

    fn note_denied(&self, topic: &str) {
        if let Some(note) = &self.note {
            note.denied_topic(topic);
        }
    }

    fn error(&self, denial: &Denial, topic: &TopicName) -> RpcError {
        RpcError::permission_denied(&self.caller, denial).with_topic(topic)
    }
}

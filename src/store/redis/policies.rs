//! Policies of topics: stored by version, with their effect on claims.

use tokio::time::Instant;

use crate::domain::{GroupName, PolicyEffect, TopicPattern, limit};
use crate::store::{
    GroupSetting, PoliciesPage, PolicyHorizon, PolicyRemoval, PolicyWrite, PolicyWriteResult,
    Result, StoredPolicy, codec,
};

use super::reply::unexpected;
use super::script::Verb;
use super::{ConnectionLane, RedisStore};

impl RedisStore {
    /// Implements [`Store::write_policies`](crate::store::Store::write_policies).
    pub(super) async fn write_policies(
        &self,
        policies: Vec<PolicyWrite>,
        until: Option<Instant>,
    ) -> Result<Vec<PolicyWriteResult>> {
        let mut call = self.shard.write_call(Verb::WritePolicies, until).await?;
        for PolicyWrite { name, expected, version, effect, groups, body } in &policies {
            let is_topic = matches!(name, TopicPattern::Exact(_));
            let (code, pause_end) = match effect {
                PolicyEffect::Deliver => ("d", 0),
                PolicyEffect::Pause { until } => ("p", until.map_or(0, |until| until.0)),
                PolicyEffect::Release => ("r", 0),
                PolicyEffect::Forget => ("f", 0),
            };
            call.arg(name.to_string()).arg(u8::from(is_topic)).arg(*expected).arg(*version);
            call.arg(format!("{code}{}", byte_limit(name, body)))
                .arg(pause_end)
                .arg(&body[..])
                .arg(groups.len());
            for setting in groups {
                let GroupSetting { group, weight: _, paused } = &setting;
                call.arg(GroupName::text(group.as_ref()))
                    .arg(setting.valid_weight())
                    .arg(u8::from(*paused));
            }
        }
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        reply.time()?;
        let result = |_| {
            let is_written = reply.number()? == 1;
            Ok(PolicyWriteResult { is_written, version: reply.count()? })
        };
        (0..policies.len()).map(result).collect()
    }

    /// Implements [`Store::policies`](crate::store::Store::policies).
    pub(super) async fn policies(&self, after: u64, limit: usize) -> Result<PoliciesPage> {
        let mut call = self.call(Verb::Policies);
        call.arg(after).arg(limit.min(limit::CALL_JOBS_MAX));
        let mut reply = self.run(ConnectionLane::Read, &call).await?;
        let last_sequence = reply.count()?;
        let horizon = PolicyHorizon { version: reply.count()?, sequence: reply.count()? };
        let mut policies = Vec::new();
        while !reply.is_empty() {
            let (name, value) = (reply.text()?, reply.bytes()?);
            let (version, sequence, body) =
                parse(&value).ok_or_else(|| unexpected("a stored policy"))?;
            // A name that another version of ringq wrote is skipped.
            if let Ok(name) = TopicPattern::stored(&name) {
                policies.push(StoredPolicy { name, version, sequence, body: value.slice(body..) });
            }
        }
        Ok(PoliciesPage { policies, last_sequence, horizon })
    }

    /// Implements [`Store::forget_policies`](crate::store::Store::forget_policies).
    pub(super) async fn forget_policies(
        &self,
        removal: PolicyRemoval,
        until: Option<Instant>,
    ) -> Result<bool> {
        let mut call = self.shard.write_call(Verb::ForgetPolicies, until).await?;
        call.arg(removal.last_sequence).arg(removal.expected).arg(removal.horizon);
        for (name, version) in &removal.policies {
            call.arg(name.to_string()).arg(*version);
        }
        let mut reply = self.run(ConnectionLane::Write, &call).await?;
        reply.time()?;
        Ok(reply.number()? == 1)
    }
}

/// Returns whether the settings of a policy have a limit of bytes, `1` or `0`; empty: it has no settings.
fn byte_limit(name: &TopicPattern, body: &[u8]) -> &'static str {
    let policy = codec::decode_topic_policy(name.clone(), 0, body);
    match policy.ok().and_then(|policy| policy.settings) {
        None => "",
        Some(settings) if settings.max_stored_bytes.is_some() => "1",
        Some(_) => "0",
    }
}

/// Parses `<version> <sequence> <live> <body>`; returns the place where the body begins.
fn parse(value: &[u8]) -> Option<(u64, u64, usize)> {
    let mut parts = value.splitn(4, |byte| *byte == b' ');
    let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
    let (version, sequence, _live) = (number()?, number()?, number()?);
    Some((version, sequence, value.len() - parts.next()?.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_policy_is_read_with_any_bytes_in_it() {
        assert_eq!(parse(b"3 17 1 a b \xff"), Some((3, 17, 7)));
        assert_eq!(parse(b"3 17 0 "), Some((3, 17, 7)), "an empty body");
        for damaged in [&b""[..], b"3 17 1", b"x 17 1 a", b"3"] {
            assert_eq!(parse(damaged), None);
        }
    }
}

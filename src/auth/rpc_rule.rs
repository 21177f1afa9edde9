//! Rule of each RPC: the roles that may call it, and what they then have to be allowed to touch.

use crate::rpc::Rpc;

use super::role::Role::{self, Operator, Producer, Viewer, Worker};

/// Rule of an RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcRule {
    /// Roles that may call it; one is enough. Empty: every identity may.
    pub roles: &'static [Role],
    /// Kind of the things that it touches.
    pub scope: RpcScope,
}

/// Kind of the things that an RPC touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcScope {
    /// Topics that its request names: each has to match a pattern of one of the roles.
    Topics,
    /// Topics of the receipts in its request: each has to match a pattern of one of the roles.
    Receipts,
    /// Topics that match patterns in its request: a name has to be allowed; of a glob the allowed part is meant.
    Patterns,
    /// Topics in its answer: only those that match a pattern of one of the roles are shown.
    Shown,
    /// The server and its shards, which all topics share: one of the roles has to have the pattern `*`, and the
    /// identity no namespaces.
    Server,
    /// Nothing that belongs to a topic.
    Nothing,
}

/// Returns the rule of an RPC.
#[must_use]
pub fn rule(rpc: Rpc) -> RpcRule {
    let (roles, scope): (&'static [Role], RpcScope) = match rpc {
        Rpc::Enqueue | Rpc::BatchEnqueue => (&[Producer], RpcScope::Topics),
        Rpc::Get => (&[Producer, Operator, Viewer], RpcScope::Topics),
        Rpc::Delete | Rpc::Reschedule => (&[Producer, Operator], RpcScope::Topics),
        Rpc::Stream | Rpc::Pull => (&[Worker], RpcScope::Patterns),
        Rpc::Ack | Rpc::Nack | Rpc::Extend => (&[Worker], RpcScope::Receipts),
        Rpc::GetTopic
        | Rpc::GetTopicStats
        | Rpc::ListGroups
        | Rpc::ListJobs
        | Rpc::ExplainJob
        | Rpc::IsActive
        | Rpc::StreamIsActive
        | Rpc::GetMetricSpec
        | Rpc::GetMetrics => (&[Operator, Viewer], RpcScope::Topics),
        Rpc::RedriveJobs
        | Rpc::CreateTopic
        | Rpc::UpdateTopic
        | Rpc::DeleteTopic
        | Rpc::PauseTopic
        | Rpc::ResumeTopic
        | Rpc::PauseGroup
        | Rpc::ResumeGroup
        | Rpc::PurgeTopic => (&[Operator], RpcScope::Topics),
        Rpc::ListTopics | Rpc::ListWorkers => (&[Operator, Viewer], RpcScope::Shown),
        Rpc::ListShards => (&[Operator, Viewer], RpcScope::Server),
        Rpc::SetShardState => (&[Operator], RpcScope::Server),
        Rpc::GetServerInfo => (&[], RpcScope::Nothing),
    };
    RpcRule { roles, scope }
}

//! RPC of a path, with what the layers need: metrics have a bounded set of names, and each RPC its limits.

use crate::rpc::Rpc;

/// RPC as the layers use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RpcMethod {
    /// RPC of our own services; `None`: health, reflection and unknown paths.
    pub(super) rpc: Option<Rpc>,
    /// Service and name, as `ringq.v1.QueueService/Get`.
    pub(super) path: &'static str,
    /// Name of the RPC in metrics and logs.
    pub(super) name: &'static str,
    /// Kind of the RPC, which selects its limits.
    pub(super) kind: MethodKind,
}

/// Kind of an RPC: selects which limits apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MethodKind {
    /// RPC with one message each way: counted, and limited in time.
    Unary,
    /// RPC that waits on purpose: not counted with the unary calls (the dispatcher counts it with the streams); its
    /// time limit is added to its longest wait.
    Pull,
    /// RPC without end: counted by the dispatcher while it lives, and not limited in time.
    Stream,
    /// Watch of health or of a scaler without end, for as long as its client keeps it open: counted per connection, and
    /// with the streams of its identity, or by address if it has none.
    Watch,
    /// Health, reflection and unknown paths: counted per connection and not with other calls, so that probes work
    /// under load; limited in time.
    Other,
}

/// Health and reflection: open at any time, or counted apart from the other calls.
const PROBES: [RpcMethod; 2] = [
    RpcMethod::other("grpc.health.v1.Health/Check", "HealthCheck", MethodKind::Other),
    RpcMethod::other("grpc.health.v1.Health/Watch", "HealthWatch", MethodKind::Watch),
];
/// Reflection and unknown paths.
const UNKNOWN: RpcMethod = RpcMethod::other("_OTHER", "Other", MethodKind::Other);

// === impl RpcMethod ===

impl RpcMethod {
    /// Returns the RPC of a path.
    pub(super) fn from_path(path: &str) -> RpcMethod {
        if let Some(rpc) = Rpc::from_path(path) {
            return RpcMethod::from(rpc);
        }
        let path = path.strip_prefix('/').unwrap_or(path);
        PROBES.iter().find(|method| method.path == path).copied().unwrap_or(UNKNOWN)
    }

    const fn other(path: &'static str, name: &'static str, kind: MethodKind) -> RpcMethod {
        RpcMethod { rpc: None, path, name, kind }
    }

    /// Returns whether the call shows nothing but whether the server works.
    pub(super) fn is_health(self) -> bool {
        self.rpc.is_none() && self.name.starts_with("Health")
    }

    /// Returns whether calls are traced. Probes and scalers ask every few seconds, and would bury the other traces.
    pub(super) fn is_traced(self) -> bool {
        self.path.starts_with("ringq.v1.")
    }

    /// Returns whether the RPC is not executed after its deadline: no lease token guards its write, or a token alone
    /// is not enough, because a late Extend would undo the one that followed it.
    pub(super) fn writes_until_deadline(self) -> bool {
        matches!(
            self.name,
            "Enqueue"
                | "BatchEnqueue"
                | "Delete"
                | "Reschedule"
                | "Extend"
                | "RedriveJobs"
                | "PurgeTopic"
                | "SetShardState"
                | "CreateTopic"
                | "UpdateTopic"
                | "DeleteTopic"
                | "PauseTopic"
                | "ResumeTopic"
                | "PauseGroup"
                | "ResumeGroup"
        )
    }

    /// Returns whether the RPC ends or extends leases: it frees resources for other calls, and refusing it costs a
    /// lease.
    pub(super) fn settles(self) -> bool {
        matches!(self.name, "Ack" | "Nack" | "Extend")
    }

    /// Returns whether the RPC changes nothing, so that its answer can be withheld.
    pub(super) fn reads(self) -> bool {
        let named = ["Get", "GetTopic", "GetTopicStats", "GetServerInfo", "ExplainJob"];
        self.kind == MethodKind::Unary
            && (named.contains(&self.name) || self.name.starts_with("List"))
    }
}

impl From<Rpc> for RpcMethod {
    fn from(rpc: Rpc) -> RpcMethod {
        let kind = match rpc {
            Rpc::Stream => MethodKind::Stream,
            Rpc::Pull => MethodKind::Pull,
            Rpc::StreamIsActive => MethodKind::Watch,
            Rpc::Enqueue
            | Rpc::BatchEnqueue
            | Rpc::Get
            | Rpc::Delete
            | Rpc::Reschedule
            | Rpc::Ack
            | Rpc::Nack
            | Rpc::Extend
            | Rpc::GetTopic
            | Rpc::ListTopics
            | Rpc::GetTopicStats
            | Rpc::PurgeTopic
            | Rpc::ListGroups
            | Rpc::ListJobs
            | Rpc::RedriveJobs
            | Rpc::ExplainJob
            | Rpc::ListWorkers
            | Rpc::ListShards
            | Rpc::SetShardState
            | Rpc::CreateTopic
            | Rpc::UpdateTopic
            | Rpc::DeleteTopic
            | Rpc::PauseTopic
            | Rpc::ResumeTopic
            | Rpc::PauseGroup
            | Rpc::ResumeGroup
            | Rpc::GetServerInfo
            | Rpc::IsActive
            | Rpc::GetMetricSpec
            | Rpc::GetMetrics => MethodKind::Unary,
        };
        RpcMethod { rpc: Some(rpc), path: rpc.path(), name: rpc.name(), kind }
    }
}

// === impl MethodKind ===

impl MethodKind {
    /// Returns whether the call is health or reflection.
    pub(super) fn is_probe(self) -> bool {
        matches!(self, MethodKind::Watch | MethodKind::Other)
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// Every RPC of the contract is in the table under its own name, so that a new one cannot bypass the limits
    /// unnoticed.
    #[test]
    fn the_table_is_complete() {
        let files = prost_types::FileDescriptorSet::decode(crate::pb::FILE_DESCRIPTOR_SET).unwrap();
        let ours = files.file.iter().filter(|file| file.package() == "ringq.v1");
        let mut seen = 0;
        for service in ours.flat_map(|file| &file.service) {
            for rpc in &service.method {
                let path = format!("/ringq.v1.{}/{}", service.name(), rpc.name());
                let method = RpcMethod::from_path(&path);
                assert_eq!(method.name, rpc.name());
                assert_eq!(method.kind == MethodKind::Stream, rpc.server_streaming(), "{path}");
                seen += 1;
            }
        }
        assert_eq!(seen, 29);
        assert_eq!(RpcMethod::from_path("/ringq.v1.QueueService/Nothing").kind, MethodKind::Other);
    }

    #[test]
    fn settles_and_reads_differ_from_other_calls() {
        let of = |name: &str| RpcMethod::from_path(&format!("/ringq.v1.QueueService/{name}"));
        let settles = ["Ack", "Nack", "Extend", "Enqueue", "Get"].map(|name| of(name).settles());
        assert_eq!(settles, [true, true, true, false, false]);
        let list = RpcMethod::from_path("/ringq.v1.AdminService/ListJobs");
        let reads = [list, of("Get"), of("Enqueue"), of("Ack"), of("Pull")].map(RpcMethod::reads);
        assert_eq!(reads, [true, true, false, false, false]);
    }
}

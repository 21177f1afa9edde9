//! RPC of a path. A table, so that metrics have a bounded set of names and a lookup costs a comparison.

/// RPC as the layers use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RpcMethod {
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
    /// Watch of health or of a scaler without end, for as long as its client keeps it open: counted per connection.
    Watch,
    /// Health, reflection and unknown paths: counted per connection and not with other calls, so that probes work
    /// under load; limited in time.
    Other,
}

/// All RPCs that this server has.
const METHODS: [RpcMethod; 25] = [
    method("ringq.v1.QueueService/Enqueue", "Enqueue", MethodKind::Unary),
    method("ringq.v1.QueueService/BatchEnqueue", "BatchEnqueue", MethodKind::Unary),
    method("ringq.v1.QueueService/Get", "Get", MethodKind::Unary),
    method("ringq.v1.QueueService/Delete", "Delete", MethodKind::Unary),
    method("ringq.v1.QueueService/Reschedule", "Reschedule", MethodKind::Unary),
    method("ringq.v1.QueueService/Stream", "Stream", MethodKind::Stream),
    method("ringq.v1.QueueService/Pull", "Pull", MethodKind::Pull),
    method("ringq.v1.QueueService/Ack", "Ack", MethodKind::Unary),
    method("ringq.v1.QueueService/Nack", "Nack", MethodKind::Unary),
    method("ringq.v1.QueueService/Extend", "Extend", MethodKind::Unary),
    method("ringq.v1.TopicService/GetTopic", "GetTopic", MethodKind::Unary),
    method("ringq.v1.TopicService/ListTopics", "ListTopics", MethodKind::Unary),
    method("ringq.v1.TopicService/GetTopicStats", "GetTopicStats", MethodKind::Unary),
    method("ringq.v1.AdminService/ListJobs", "ListJobs", MethodKind::Unary),
    method("ringq.v1.AdminService/RedriveJobs", "RedriveJobs", MethodKind::Unary),
    method("ringq.v1.AdminService/ListWorkers", "ListWorkers", MethodKind::Unary),
    method("ringq.v1.AdminService/ListShards", "ListShards", MethodKind::Unary),
    method("ringq.v1.AdminService/SetShardState", "SetShardState", MethodKind::Unary),
    method("ringq.v1.AdminService/GetServerInfo", "GetServerInfo", MethodKind::Unary),
    method("externalscaler.ExternalScaler/IsActive", "IsActive", MethodKind::Unary),
    method("externalscaler.ExternalScaler/StreamIsActive", "StreamIsActive", MethodKind::Watch),
    method("externalscaler.ExternalScaler/GetMetricSpec", "GetMetricSpec", MethodKind::Unary),
    method("externalscaler.ExternalScaler/GetMetrics", "GetMetrics", MethodKind::Unary),
    method("grpc.health.v1.Health/Check", "HealthCheck", MethodKind::Other),
    method("grpc.health.v1.Health/Watch", "HealthWatch", MethodKind::Watch),
];
/// Reflection and unknown paths.
const UNKNOWN: RpcMethod = method("_OTHER", "Other", MethodKind::Other);

const fn method(path: &'static str, name: &'static str, kind: MethodKind) -> RpcMethod {
    RpcMethod { path, name, kind }
}

// === impl RpcMethod ===

impl RpcMethod {
    /// Returns the RPC of a path.
    pub(super) fn from_path(path: &str) -> RpcMethod {
        let path = path.strip_prefix('/').unwrap_or(path);
        METHODS.iter().find(|method| method.path == path).copied().unwrap_or(UNKNOWN)
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
                | "SetShardState"
        )
    }

    /// Returns whether the RPC ends or extends leases: it frees resources for other calls, and refusing it costs a
    /// lease.
    pub(super) fn settles(self) -> bool {
        matches!(self.name, "Ack" | "Nack" | "Extend")
    }

    /// Returns whether the RPC changes nothing, so that its answer can be withheld.
    pub(super) fn reads(self) -> bool {
        let named = ["Get", "GetTopic", "GetTopicStats", "GetServerInfo"];
        self.kind == MethodKind::Unary
            && (named.contains(&self.name) || self.name.starts_with("List"))
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
        assert_eq!(seen, 19);
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

//! Errors that tonic returns before a handler runs: a message that is too large or cannot be read, an RPC that does
//! not exist. They have no details, and their codes are not those of the contract.

use http::HeaderMap;
use tonic::{Code, Status};

use crate::domain::limit;

use super::super::status::RpcError;
use super::method::{MethodKind, RpcMethod};

/// Returns the error to send instead; `None`: the answer is from a handler, or from a service outside of the
/// contract.
pub(super) fn translate_tonic_error(method: RpcMethod, headers: &HeaderMap) -> Option<Status> {
    if headers.contains_key("grpc-status-details-bin") {
        return None;
    }
    let status = Status::from_header_map(headers)?;
    let ours = method.kind != MethodKind::Other;
    match status.code() {
        Code::OutOfRange if ours => {
            Some(RpcError::message_too_large(limit::REQUEST_BYTES_MAX).into())
        }
        // A message that cannot be decoded is an error of its sender.
        Code::Internal if ours => Some(RpcError::malformed(status.message()).into()),
        Code::Unimplemented if status.message().is_empty() => Some(Status::unimplemented(
            "this server has no such rpc; GetServerInfo returns its version and features",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt as _;

    use super::*;

    #[test]
    fn errors_of_the_transport_become_ours_and_others_stay() {
        let ours = RpcMethod::from_path("/ringq.v1.QueueService/Enqueue");
        let other = RpcMethod::from_path("/grpc.health.v1.Health/Check");
        let reason = |method, status: Status| {
            let mut headers = HeaderMap::new();
            status.add_header(&mut headers).unwrap();
            let translated = translate_tonic_error(method, &headers)?;
            let reason =
                translated.get_details_error_info().map_or(String::new(), |info| info.reason);
            Some((translated.code(), reason))
        };
        let too_large = (Code::InvalidArgument, "TOO_LARGE".to_owned());
        let malformed = (Code::InvalidArgument, "INVALID_FIELD".to_owned());
        assert_eq!(reason(ours, Status::out_of_range("found 5 MiB")), Some(too_large));
        assert_eq!(reason(ours, Status::internal("no protobuf")), Some(malformed));
        let unknown = Some((Code::Unimplemented, String::new()));
        assert_eq!(reason(other, Status::unimplemented("")), unknown);
        assert_eq!(reason(other, Status::not_found("no such service")), None);
        assert_eq!(reason(ours, RpcError::internal().into()), None);
    }
}

//! RPCs that can be called as JSON: those of the contract, read from its descriptors.

use std::collections::HashMap;

use prost_reflect::MethodDescriptor;

use crate::canonical_json;

use super::super::Error;

/// Package of the contract.
const PACKAGE: &str = "ringq.v1";

/// RPCs by the path that gRPC has for them.
#[derive(Debug)]
pub(super) struct JsonMethods(HashMap<String, MethodDescriptor>);

// === impl JsonMethods ===

impl JsonMethods {
    /// Returns all RPCs of all services of the contract.
    pub(super) fn of_the_contract() -> Result<JsonMethods, Error> {
        let contract = canonical_json::contract().map_err(Error::Descriptors)?;
        let services = contract.services().filter(|service| service.package_name() == PACKAGE);
        let methods = services.flat_map(|service| service.methods().collect::<Vec<_>>());
        let path = |method: &MethodDescriptor| {
            format!("/{}/{}", method.parent_service().full_name(), method.name())
        };
        Ok(JsonMethods(methods.map(|method| (path(&method), method)).collect()))
    }

    /// Returns the RPC of a path.
    pub(super) fn get(&self, path: &str) -> Option<&MethodDescriptor> {
        self.0.get(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rpc_of_the_contract_has_its_path() {
        let methods = JsonMethods::of_the_contract().unwrap();
        assert_eq!(methods.0.len(), 29);
        let pull = methods.get("/ringq.v1.QueueService/Pull").unwrap();
        assert_eq!(pull.input().full_name(), "ringq.v1.PullRequest");
        for other in ["", "/", "/ringq.v1.QueueService/", "/grpc.health.v1.Health/Check"] {
            assert!(methods.get(other).is_none(), "{other}");
        }
    }
}

//! The RPCs of this server, generated from the descriptors by `build.rs`, so that a table without a row for one of them
//! does not compile. Health and reflection are not among them.

use std::str::FromStr;

include!(concat!(env!("OUT_DIR"), "/rpc.rs"));

// === impl Rpc ===

impl Rpc {
    /// Returns the RPC of a path, with or without a leading slash.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Rpc> {
        let path = path.strip_prefix('/').unwrap_or(path);
        Rpc::ALL.into_iter().find(|rpc| rpc.path() == path)
    }
}

impl FromStr for Rpc {
    type Err = ();

    /// Reads the name or the path of an RPC.
    fn from_str(text: &str) -> Result<Rpc, ()> {
        let named = Rpc::ALL.into_iter().find(|rpc| rpc.name() == text);
        named.or_else(|| Rpc::from_path(text)).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rpcs_are_found_by_name_and_by_path() {
        assert_eq!("Get".parse(), Ok(Rpc::Get));
        assert_eq!("ringq.v1.QueueService/Get".parse(), Ok(Rpc::Get));
        assert_eq!(Rpc::from_path("/externalscaler.ExternalScaler/IsActive"), Some(Rpc::IsActive));
        assert_eq!(Rpc::from_path("/ringq.v1.QueueService/Nothing"), None);
        let mut names: Vec<_> = Rpc::ALL.iter().map(|rpc| rpc.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Rpc::ALL.len());
    }
}

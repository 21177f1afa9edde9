//! The generated code of the interface by which KEDA scales workers, `externalscaler`.
//!
//! `build.rs` generates it from `proto/keda`; the comments in that file are the specification.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    rustdoc::all,
    reason = "generated code: its documentation and its shape come from the proto file"
)]

tonic::include_proto!("externalscaler");

/// The compiled interface with its comments, as a serialized `google.protobuf.FileDescriptorSet`, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("keda_descriptor");

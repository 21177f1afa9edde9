//! The generated code of the public contract, `ringq.v1`: messages, clients and servers.
//!
//! `build.rs` generates it from `proto/ringq/v1`; the comments in those files are the specification. Only the edges of
//! the server and its clients use these types; inside the server, `domain` has its own.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    rustdoc::all,
    reason = "generated code: its documentation and its shape come from the proto files"
)]

tonic::include_proto!("ringq.v1");

/// The compiled contract with its comments, as a serialized `google.protobuf.FileDescriptorSet`, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("ringq_descriptor");

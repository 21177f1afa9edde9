//! Errors that prevent a start, or stop a running server.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::{ShardUrl, io_problem};
use crate::domain::ShardName;
use crate::{grpc, tls};

/// Error at start or while serving. If an operator can fix it, the text describes how.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be bound.
    #[error(
        "cannot listen on {address}: {}; free it or choose another with --{flag}",
        io_problem(error)
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Flag that sets the address, without dashes.
        flag: &'static str,
        /// Error of the system.
        error: io::Error,
    },
    /// The directory of a shard cannot be created or written to.
    #[error(
        "cannot write to {}: {}; {} with --data-dir or --shard",
        path.display(),
        io_problem(error),
        match error.kind() {
            io::ErrorKind::NotADirectory => "choose another directory",
            _ => "make the directory writable or choose another",
        }
    )]
    DataDir {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The identities cannot be read.
    #[error("cannot use the identities: {}; correct them, or choose others with --identities", .0.join("; "))]
    Identities(Vec<String>),
    /// The policies of topics cannot be read.
    #[error("cannot use the policies of topics: {}; correct them, or choose others with --topics", .0.join("; "))]
    Topics(Vec<String>),
    /// The audit log cannot be opened.
    #[error("cannot write the audit log: {0}; choose another place with --audit-log")]
    AuditLog(io::Error),
    /// The ready file cannot be written.
    #[error(
        "cannot write the ready file {}: {}; choose another with --ready-file",
        path.display(), io_problem(error)
    )]
    ReadyFile {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// A shard cannot be opened.
    #[error("cannot open shard {name} at {url}: {error}")]
    Shard {
        /// The shard.
        name: ShardName,
        /// Url of the shard.
        url: ShardUrl,
        /// Reason, and what to do.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file of the ports' TLS cannot be used.
    #[error("{0}")]
    Tls(#[from] tls::TlsFileError),
    /// The gRPC server failed.
    #[error("{0}")]
    Grpc(#[from] grpc::Error),
}

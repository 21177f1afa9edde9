//! Why a server cannot start or go on.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::{ShardUrl, io_problem};
use crate::domain::ShardName;
use crate::grpc;

/// Why a server cannot start or go on. What an operator can mend says how.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be had.
    #[error(
        "cannot listen on {address}: {}; free it or choose another with --{flag}",
        io_problem(error)
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The flag that sets it, without dashes.
        flag: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// The directory of a shard cannot be made or written to.
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
        /// What the system said.
        error: io::Error,
    },
    /// The ready file cannot be written.
    #[error(
        "cannot write the ready file {}: {}; choose another with --ready-file",
        path.display(), io_problem(error)
    )]
    ReadyFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A shard cannot be opened.
    #[error("cannot open shard {name} at {url}: {error}")]
    Shard {
        /// The shard.
        name: ShardName,
        /// Where it is.
        url: ShardUrl,
        /// Why, and what to do.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The gRPC server failed.
    #[error("{0}")]
    Grpc(#[from] grpc::Error),
}

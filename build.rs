//! Compiles the public contract, `proto/ringq/v1`, the interface of KEDA, and the messages that stores keep, in pure Rust: no protoc is
//! needed.
//!
//! The descriptor set keeps the comments of the proto files, so that server reflection can show
//! them.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;
use prost_types::FileDescriptorSet;

/// Where the messages that stores keep are described.
const STORED: &str = "src/store/codec";
const STORED_FILE: &str = "stored.proto";

#[expect(clippy::disallowed_methods, reason = "a build script gets its paths by environment")]
fn main() -> Result<(), Box<dyn Error>> {
    let is_server = env::var_os("CARGO_FEATURE_SERVER").is_some();
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed={STORED}/{STORED_FILE}");
    let files = [
        "job",
        "queue_service",
        "topic_service",
        "admin_service",
        "pipeline_service",
        "schedule_service",
    ]
    .map(|name| format!("proto/ringq/v1/{name}.proto"));
    let descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("ringq_descriptor.bin"), descriptors.encode_to_vec())?;
    // Payloads become `bytes::Bytes`: a job's data is shared on its way, never copied.
    tonic_prost_build::configure()
        .bytes(".ringq.v1.Payload")
        .build_server(is_server)
        .compile_fds(descriptors.clone())?;
    if is_server {
        let scaler = protox::compile(["proto/keda/externalscaler.proto"], ["proto/keda"])?;
        fs::write(out.join("keda_descriptor.bin"), scaler.encode_to_vec())?;
        let rpcs: Vec<_> = [rpcs(&descriptors), rpcs(&scaler)].concat();
        fs::write(out.join("rpc.rs"), rpc_enum(&rpcs))?;
        tonic_prost_build::configure().build_client(false).compile_fds(scaler)?;
        let stored = protox::compile([STORED_FILE], [STORED])?;
        tonic_prost_build::configure().bytes(".ringq.stored.Payload").compile_fds(stored)?;
    }
    Ok(())
}

/// Returns the name and the path of every RPC of these files.
fn rpcs(files: &FileDescriptorSet) -> Vec<(String, String)> {
    let services = files.file.iter().flat_map(|file| file.service.iter().map(move |s| (file, s)));
    let rpcs = services.flat_map(|(file, service)| {
        let of = format!("{}.{}", file.package(), service.name());
        service
            .method
            .iter()
            .map(move |rpc| (rpc.name().to_owned(), format!("{of}/{}", rpc.name())))
    });
    rpcs.collect()
}

/// Returns the source of an enumeration of the RPCs. The compiler then reports each table that lacks a new one.
fn rpc_enum(rpcs: &[(String, String)]) -> String {
    let lines = |line: fn(&str, &str) -> String| -> String {
        rpcs.iter().map(|(name, path)| line(name, path)).collect()
    };
    format!(
        "/// RPC of this server.\n\
         #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\n\
         pub enum Rpc {{\n{variants}}}\n\
         impl Rpc {{\n\
         /// Every RPC.\n\
         pub const ALL: [Rpc; {count}] = [{all}];\n\
         /// Returns the name, as `Get`.\n\
         #[must_use]\n\
         pub const fn name(self) -> &'static str {{ match self {{\n{names}}} }}\n\
         /// Returns the path, as `ringq.v1.QueueService/Get`.\n\
         #[must_use]\n\
         pub const fn path(self) -> &'static str {{ match self {{\n{paths}}} }}\n\
         }}\n",
        count = rpcs.len(),
        variants = lines(|name, path| format!("    /// `{path}`.\n    {name},\n")),
        all = lines(|name, _| format!("Rpc::{name}, ")),
        names = lines(|name, _| format!("    Rpc::{name} => \"{name}\",\n")),
        paths = lines(|name, path| format!("    Rpc::{name} => \"{path}\",\n")),
    )
}

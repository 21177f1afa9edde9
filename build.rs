//! Compiles the public contract, `proto/ringq/v1`, the interface of KEDA, and the messages that stores keep, in pure Rust: no protoc is
//! needed.
//!
//! The descriptor set keeps the comments of the proto files, so that server reflection can show
//! them.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

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
        .compile_fds(descriptors)?;
    if is_server {
        let scaler = protox::compile(["proto/keda/externalscaler.proto"], ["proto/keda"])?;
        fs::write(out.join("keda_descriptor.bin"), scaler.encode_to_vec())?;
        tonic_prost_build::configure().build_client(false).compile_fds(scaler)?;
        let stored = protox::compile([STORED_FILE], [STORED])?;
        tonic_prost_build::configure().bytes(".ringq.stored.Payload").compile_fds(stored)?;
    }
    Ok(())
}

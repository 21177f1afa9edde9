//! Compiles the public contract, `proto/ringq/v1`, in pure Rust: no protoc is needed.
//!
//! The descriptor set keeps the comments of the proto files, so that server reflection can show
//! them.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

#[expect(clippy::disallowed_methods, reason = "a build script gets its paths by environment")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
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
        .build_server(env::var_os("CARGO_FEATURE_SERVER").is_some())
        .compile_fds(descriptors)?;
    Ok(())
}

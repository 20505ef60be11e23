//! Compiles the contract without `protoc`, and lists its methods with their options, and its messages with a header.

#[path = "build/headers.rs"]
mod headers;
#[path = "build/methods.rs"]
mod methods;

use std::path::{Path, PathBuf};

use tonic_prost_build::FileDescriptorSet;

/// Declares the options of methods, which this build reads. The contract's descriptors leave them out.
const OPTIONS: &str = "rollout/options/v1/options.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = [
        "common",
        "runs",
        "worker",
        "cluster",
        "members",
        "events",
        "peer",
        "items",
        "store",
        "rendezvous",
        "barrier",
        "dataset",
        "dry_run",
        "checkpoint",
        "job",
        "maintenance",
        "namespace",
        "enrolment",
        "certificates",
        "keys",
        "forward",
    ]
    .map(|f| format!("rollout/v1/{f}.proto"));
    println!("cargo:rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true).open_files(files)?;
    let pool = compiler.descriptor_pool();
    std::fs::write(out.join("methods.rs"), methods::list(&pool)?)?;
    std::fs::write(out.join("dry_runs.rs"), methods::dry_runs(&pool)?)?;
    std::fs::write(out.join("headers.rs"), headers::calls(&pool))?;

    let mut descriptors = compiler.file_descriptor_set();
    descriptors.file.retain(|file| file.package() == methods::PACKAGE);
    for file in &mut descriptors.file {
        file.dependency.retain(|import| import != OPTIONS);
    }
    std::fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    fakes(&out.join("fakes"), descriptors.clone())?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}

/// Writes the servers a second time, with a default answer to each method: `UNIMPLEMENTED`. They use the messages of
/// `crate::v1`.
fn fakes(out: &Path, descriptors: FileDescriptorSet) -> std::io::Result<()> {
    std::fs::create_dir_all(out)?;
    tonic_prost_build::configure()
        .build_client(false)
        .generate_default_stubs(true)
        .extern_path(".rollout.v1", "crate::v1")
        .out_dir(out)
        .compile_fds(descriptors)
}

//! Compiles the contract without `protoc`.
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
        "checkpoint",
        "maintenance",
        "namespace",
        "enrolment",
        "certificates",
    ]
    .map(|f| format!("rollout/v1/{f}.proto"));
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(files, ["proto"])?;
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}

use std::path::PathBuf;

use super::*;

const FULL: &str = r#"
    name = "w1"
    data_dir = "/tmp/w1"
    endpoints = ["127.0.0.1:7001"]
    [labels]
    zone = "a"
    [tls]
    insecure_plaintext = true
    [part]
    bytes = "2MiB"
    [[engine]]
    kind = "mock"
    slots = 2
    latency_ms_min = 5
    latency_ms_max = 500
    tail = "pareto"
    [[engine]]
    kind = "openai"
    base_url = "http://127.0.0.1:8000"
"#;

#[test]
fn flags_go_over_the_file() {
    use clap::Parser;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.toml");
    std::fs::write(&path, FULL).unwrap();
    let path = path.to_string_lossy().into_owned();
    let flags = Flags::parse_from([
        "rollout-worker",
        "--config",
        &path,
        "--name",
        "w9",
        "--endpoint",
        "a:1,b:2",
        "--compute",
        "gcp",
        "--compute-endpoint",
        "http://127.0.0.1:9",
    ]);
    let config = load(&flags).unwrap();
    assert_eq!(config.name, "w9");
    assert_eq!(config.endpoints, ["a:1", "b:2"]);
    assert_eq!(config.data_dir, PathBuf::from("/tmp/w1"));
    assert_eq!(config.compute.provider, ComputeProvider::Gcp);
    assert_eq!(config.compute.endpoint.as_deref(), Some("http://127.0.0.1:9"));
}

//! Seeded bugs exist only to measure the fault tests: no other build contains them.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

const FEATURE: &str = "seeded-bugs";

/// Compiles only the deciding module, and returns the compiler's output. It cannot succeed, because the rest of the
/// crate is missing.
fn compiled(optimized: bool) -> String {
    let dir = tempfile::tempdir().expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledger/src/machine/seeded.rs");
    let mut rustc = Command::new(std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into()));
    rustc.args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata"]);
    rustc.args(["--cfg", "feature=\"seeded-bugs\""]);
    rustc.args(["-C", if optimized { "debug-assertions=off" } else { "debug-assertions=on" }]);
    let out = rustc.arg("--out-dir").arg(dir.path()).arg(source).output().expect("rustc runs");
    String::from_utf8_lossy(&out.stderr).into_owned()
}

#[test]
fn no_release_builds_with_seeded_bugs() {
    let refusal = "a release must not have it";
    assert!(compiled(true).contains(refusal), "a release with seeded bugs was not refused");
    assert!(!compiled(false).contains(refusal), "the refusal says nothing of releases");
}

#[test]
fn no_default_and_no_dependency_asks_for_seeded_bugs() {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&out.stdout).expect("metadata is JSON");
    let mut having = 0;
    for package in metadata["packages"].as_array().expect("packages") {
        let name = &package["name"];
        let features = package["features"].as_object().expect("features");
        having += usize::from(features.contains_key(FEATURE));
        let default = features.get("default").map(Value::to_string).unwrap_or_default();
        assert!(!default.contains(FEATURE), "{name} has seeded bugs by default");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let asked = dependency["features"].to_string();
            assert!(!asked.contains(FEATURE), "{name} asks {} for bugs", dependency["name"]);
        }
    }
    assert_eq!(having, 3, "ledger, raft and coordinator pass the feature on");
}

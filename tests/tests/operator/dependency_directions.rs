//! The crates depend on each other in one direction, and each foreign engine lives in one crate.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which crates may depend on which of rollout's crates. For worker, coordinator and ctl, `storage` means only its
/// blobs.
const ALLOWED: &[(&str, &[&str])] = &[
    ("rollout-config", &[]),
    ("rollout-ledger", &["rollout-store-url"]),
    ("rollout-storage", &[]),
    ("rollout-store-url", &[]),
    ("rollout-proto", &[]),
    ("rollout-raft", &["rollout-config", "rollout-ledger", "rollout-storage", "rollout-proto"]),
    ("rollout-telemetry", &["rollout-config", "rollout-proto"]),
    (
        "rollout-coordinator",
        &[
            "rollout-config",
            "rollout-raft",
            "rollout-ledger",
            "rollout-proto",
            "rollout-storage",
            "rollout-store-url",
            "rollout-telemetry",
        ],
    ),
    (
        "rollout-worker",
        &[
            "rollout-config",
            "rollout-engine-protocol",
            "rollout-gateway",
            "rollout-proto",
            "rollout-storage",
            "rollout-store-url",
            "rollout-telemetry",
        ],
    ),
    ("rollout-engine-protocol", &[]),
    ("rollout-gateway", &["rollout-proto"]),
    (
        "rollout-python",
        &["rollout-engine-protocol", "rollout-gateway", "rollout-proto", "rollout-training"],
    ),
    ("rollout-training", &["rollout-gateway", "rollout-proto", "rollout-storage"]),
    (
        "rollout-ctl",
        &[
            "rollout-config",
            "rollout-gateway",
            "rollout-ledger",
            "rollout-proto",
            "rollout-storage",
            "rollout-training",
        ],
    ),
    ("rollout-jepsen", &["rollout-powerloss", "rollout-proto"]),
    (
        "rollout-fuzz",
        &[
            "rollout-coordinator",
            "rollout-ctl",
            "rollout-engine-protocol",
            "rollout-gateway",
            "rollout-ledger",
            "rollout-proto",
            "rollout-raft",
            "rollout-storage",
            "rollout-worker",
        ],
    ),
    ("rollout-preload", &["rollout-powerloss"]),
    ("rollout-powerloss", &[]),
    ("rollout-recorded", &[]),
    (
        "rollout-tests",
        &[
            "rollout-gateway",
            "rollout-jepsen",
            "rollout-powerloss",
            "rollout-proto",
            "rollout-training",
        ],
    ),
    ("xtask", &[]),
];

/// The modules of `jepsen` that judge histories. They know nothing of the product or of the code that drives it: a
/// misunderstanding there must not hide here.
const JUDGING: &[&str] =
    &["formats", "history", "judge", "lines", "models", "operations", "replay", "search", "value"];

/// The only crate that may use each of these.
const CONFINED: &[(&str, &str)] = &[
    ("openraft", "rollout-raft"),
    ("rocksdb", "rollout-storage"),
    ("object_store", "rollout-storage"),
    ("nvml-wrapper", "rollout-worker"),
];

/// Dependencies that no crate may use: cloud SDKs, which would duplicate `object_store` and plain HTTP.
const UNUSED: [&str; 4] = ["aws-", "azure_", "google-cloud-", "gcloud-"];

/// The workspace's packages.
pub(super) fn metadata() -> Value {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()
        .expect("cargo runs");
    serde_json::from_slice(&out.stdout).expect("metadata is JSON")
}

fn dependencies() -> BTreeMap<String, Vec<Value>> {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let of = |p: &Value| {
        let name = p["name"].as_str().unwrap_or_default().to_owned();
        (name, p["dependencies"].as_array().cloned().unwrap_or_default())
    };
    packages.iter().map(of).collect()
}

fn names(dependencies: &[Value]) -> BTreeSet<&str> {
    let normal = dependencies.iter().filter(|d| d["kind"].is_null());
    normal.filter_map(|d| d["name"].as_str()).collect()
}

#[test]
fn crates_depend_in_one_direction() {
    let found = dependencies();
    assert!(found.len() >= 7, "cargo metadata names the workspace's packages: {found:?}");
    for (package, dependencies) in &found {
        let allowed = ALLOWED.iter().find(|a| a.0 == package).map(|a| a.1);
        let allowed = allowed.unwrap_or_else(|| panic!("say what {package} may depend on"));
        for ours in names(dependencies).into_iter().filter(|n| n.starts_with("rollout-")) {
            assert!(allowed.contains(&ours), "{package} must not depend on {ours}");
        }
    }
}

#[test]
fn some_libraries_are_used_by_one_crate_and_sdks_of_clouds_by_none() {
    for (package, dependencies) in &dependencies() {
        for used in names(dependencies) {
            let sdk = UNUSED.iter().any(|sdk| used.starts_with(sdk));
            assert!(!sdk, "{package} must not use {used}");
        }
        for (foreign, home) in CONFINED {
            let uses = names(dependencies).contains(foreign);
            assert!(!uses || package == home, "{package} must not use {foreign}");
        }
    }
}

#[test]
fn only_members_link_rocksdb() {
    for (package, dependencies) in &dependencies() {
        let storage = dependencies.iter().find(|d| d["name"] == "rollout-storage");
        let with_rocksdb = storage.is_some_and(|d| {
            d["features"].as_array().is_some_and(|f| f.iter().any(|f| f == "rocksdb"))
                && d["kind"].is_null()
        });
        assert!(!with_rocksdb || package == "rollout-raft", "{package} asks for RocksDB");
    }
}

/// All sources of a module: `name.rs` and the files in the folder `name`.
pub(super) fn sources(of: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = vec![of.join(format!("{name}.rs"))];
    let mut folders = vec![of.join(name)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.expect("a folder can be listed").path()) {
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

#[test]
fn the_checker_of_histories_uses_no_product_type() {
    let of = Path::new(env!("CARGO_MANIFEST_DIR")).join("../jepsen/src");
    for path in JUDGING.iter().flat_map(|name| sources(&of, name)) {
        let source = std::fs::read_to_string(&path).expect("a module can be read");
        let path = path.display();
        assert!(!source.contains("rollout_"), "{path} uses a crate of ours");
        for used in source.split("crate::").skip(1) {
            let end = used.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(used.len());
            assert!(JUDGING.contains(&&used[..end]), "{path} uses {}", &used[..end]);
        }
    }
}

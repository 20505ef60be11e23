//! The crates depend on each other in one direction, and each foreign engine lives in one crate.
//!
//! *Invariant:* the table of crates in docs/architecture.md says which crate depends on which. It is the only list.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// The name of each crate, by its folder in the workspace, such as `storage/url/`.
fn folders() -> BTreeMap<String, String> {
    let metadata = metadata();
    let workspace = metadata["workspace_root"].as_str().expect("the workspace has a root");
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let folder = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a manifest"));
        let folder = manifest.strip_prefix(workspace).ok().and_then(Path::parent);
        let folder = folder.and_then(Path::to_str).expect("it is in the workspace");
        let name = package["name"].as_str().expect("a package has a name");
        (format!("{folder}/"), name.to_owned())
    };
    packages.map(folder).collect()
}

/// The folders in the cell of a table: what is `in/backticks/` and ends with a slash.
fn folders_in(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).filter(|text| text.ends_with('/')).collect()
}

/// A page's table of crates: the folder of each with those of the crates that it depends on.
fn table_of_crates(page: &str) -> BTreeMap<&str, Vec<&str>> {
    let (_, table) = page.split_once("| folder | what it is | depends on |\n").expect("a table");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.map(row).collect()
}

fn row(line: &str) -> (&str, Vec<&str>) {
    let cells: Vec<&str> = line.split('|').map(str::trim).collect();
    let [_, folder, _, depends_on, _] = cells[..] else { panic!("three cells: {line}") };
    let depends_on = match depends_on {
        "no other crate" => Vec::new(),
        listed => folders_in(listed),
    };
    (folder.trim_matches('`'), depends_on)
}

#[test]
fn a_row_of_the_table_names_folders() {
    let page = "text\n| folder | what it is | depends on |\n| --- | --- | --- |\n\
                | `a/` | the `rollout`, with `c/` | `b/`, `b/url/` |\n| `b/` | it | no other crate |\n\n| `c/` |\n";
    let expected = BTreeMap::from([("a/", vec!["b/", "b/url/"]), ("b/", vec![])]);
    assert_eq!(table_of_crates(page), expected);
}

#[test]
fn crates_depend_on_those_that_the_table_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/architecture.md");
    let page = std::fs::read_to_string(page).expect("the page can be read");
    let table = table_of_crates(&page);
    let (folders, found) = (folders(), dependencies());
    assert!(found.len() >= 7, "cargo metadata names the workspace's packages: {found:?}");
    let rows: Vec<&str> = table.keys().copied().collect();
    let packages: Vec<&str> = folders.keys().map(String::as_str).collect();
    assert_eq!(rows, packages, "docs/architecture.md has one row for each crate");
    for (folder, depends_on) in table {
        let package = &folders[folder];
        let listed: BTreeSet<&str> = depends_on
            .iter()
            .map(|folder| folders.get(*folder).map_or(*folder, String::as_str))
            .collect();
        let ours = |name: &&str| folders.values().any(|package| package == name);
        let used: BTreeSet<&str> = names(&found[package]).into_iter().filter(ours).collect();
        assert_eq!(used, listed, "what {package} depends on, and its row in docs/architecture.md");
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

//! Owns: provenance.json: from what and how the files of a release were built. An in-toto statement with the predicate of
//! SLSA 1.0 (docs/releasing.md#provenance).
//!
//! Invariant: the subjects are the files that are in the folder, with their digests.
//! Absent: a signature. The workflow on GitHub attests the files (.github/workflows/release.yml).

use super::checksums::{Digest, sha256};
use crate::run::output;
use crate::workspace::Workspace;
use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::Command;

/// The file's name.
pub(super) const PROVENANCE: &str = "provenance.json";
/// The crate that builds RocksDB or links a prebuilt one.
const ROCKSDB: &str = "librocksdb-sys";
/// Variables that change what compilers do. The last three wrap or replace rustc, or link another library.
const VARIABLES: [&str; 10] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CC",
    "CXX",
    "CFLAGS",
    "CXXFLAGS",
    "RUSTC",
    "RUSTC_WRAPPER",
    "ROCKSDB_STATIC",
];

/// The source of a release, its builder, and the time of the build.
pub(super) struct Build {
    pub(super) repository: String,
    pub(super) commit: String,
    pub(super) version: String,
    pub(super) builder: String,
    pub(super) started: String,
    pub(super) finished: String,
    /// The checks that could not run, with the reasons.
    pub(super) not_run: Vec<String>,
}

/// The compilers, libraries and settings of a build.
pub(super) struct Toolchain {
    pub(super) cargo: String,
    pub(super) rustc: String,
    /// The target that this machine builds for.
    pub(super) host: String,
    cxx: String,
    libc: String,
    /// The package that links RocksDB.
    rocksdb: String,
    lock_sha256: String,
    /// The file and digest of a prebuilt RocksDB.
    prebuilt: Option<Digest>,
    variables: Map<String, Value>,
}

impl Toolchain {
    /// That of this machine.
    ///
    /// # Errors
    /// When a compiler does not say its version.
    pub(super) fn find(workspace: &Workspace) -> Result<Self> {
        let first = |program: &str, args: &[&str]| -> Result<String> {
            let printed = output(workspace.command(program, args))?;
            Ok(printed.lines().next().unwrap_or_default().to_owned())
        };
        let verbose = output(workspace.command("rustc", &["--version", "--verbose"]))?;
        let host = verbose.lines().find_map(|line| line.strip_prefix("host: "));
        let lock = workspace.root.join("Cargo.lock");
        let locked = std::fs::read_to_string(&lock).context("Cargo.lock")?;
        let version = locked_version(&locked, ROCKSDB).context("Cargo.lock has no RocksDB")?;
        let prebuilt = std::env::var_os("ROCKSDB_LIB_DIR");
        let prebuilt = prebuilt.map(|folder| archive(Path::new(&folder))).transpose()?;
        let variables = VARIABLES.iter().filter_map(|name| {
            let value = std::env::var(name).ok()?;
            Some(((*name).to_owned(), Value::from(value)))
        });
        Ok(Self {
            cargo: output(workspace.cargo(&["--version"]))?,
            rustc: first("rustc", &["--version"])?,
            host: host.context("rustc does not say its host")?.to_owned(),
            cxx: first("c++", &["--version"])?,
            libc: output(workspace.command("getconf", &["GNU_LIBC_VERSION"]))?,
            rocksdb: format!("{ROCKSDB} {version}"),
            lock_sha256: sha256(&lock)?,
            prebuilt,
            variables: variables.collect(),
        })
    }
}

/// The version of a package in Cargo.lock.
fn locked_version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let (_, after) = lock.split_once(&format!("\nname = \"{package}\"\nversion = \""))?;
    Some(after.split_once('"')?.0)
}

/// The prebuilt RocksDB in this folder.
fn archive(folder: &Path) -> Result<Digest> {
    let name = "librocksdb.a";
    let sha256 = sha256(&folder.join(name)).context("ROCKSDB_LIB_DIR has no static RocksDB")?;
    Ok(Digest { name: name.to_owned(), sha256 })
}

/// The commit that a statement names.
///
/// # Errors
/// When it names none.
pub(super) fn commit(statement: &str) -> Result<String> {
    let statement: Value = serde_json::from_str(statement).context(PROVENANCE)?;
    let commit = &statement["predicate"]["buildDefinition"]["externalParameters"]["commit"];
    Ok(commit.as_str().with_context(|| format!("{PROVENANCE} names no commit"))?.to_owned())
}

/// The statement about these files.
pub(super) fn statement(build: &Build, toolchain: &Toolchain, files: &[Digest]) -> Value {
    let Build { repository, commit, .. } = build;
    let named =
        |Digest { name, sha256 }: &Digest| json!({"name": name, "digest": {"sha256": sha256}});
    let mut dependencies = vec![
        json!({"uri": format!("git+{repository}@{commit}"), "digest": {"gitCommit": commit}}),
        json!({"name": "Cargo.lock", "digest": {"sha256": toolchain.lock_sha256}}),
    ];
    dependencies.extend(toolchain.prebuilt.iter().map(named));
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": files.iter().map(named).collect::<Vec<_>>(),
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{repository}/blob/main/docs/releasing.md#provenance"),
                "externalParameters": {
                    "repository": repository,
                    "commit": commit,
                    "version": build.version,
                    "command": "cargo xtask release package",
                },
                "internalParameters": {
                    "host": toolchain.host,
                    "cargo": toolchain.cargo,
                    "rustc": toolchain.rustc,
                    "c++": toolchain.cxx,
                    "libc": toolchain.libc,
                    "rocksdb": {
                        "package": toolchain.rocksdb,
                        "prebuilt": toolchain.prebuilt.is_some(),
                    },
                    "environment": toolchain.variables,
                },
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": build.builder},
                "metadata": {
                    "startedOn": build.started,
                    "finishedOn": build.finished,
                    // Not a field of SLSA: fields of others have a prefix.
                    "rollout_notRun": build.not_run,
                },
            },
        },
    })
}

/// The time now, as SLSA wants it.
///
/// # Errors
/// When `date` fails.
pub(super) fn now() -> Result<String> {
    let mut command = Command::new("date");
    command.args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]);
    output(command)
}

#[cfg(test)]
mod tests {
    use super::super::checksums::digests;
    use super::*;

    fn toolchain(prebuilt: Option<Digest>) -> Toolchain {
        Toolchain {
            cargo: "cargo 1.95.0".into(),
            rustc: "rustc 1.95.0".into(),
            host: "x86_64-unknown-linux-gnu".into(),
            cxx: "c++ 12".into(),
            libc: "glibc 2.36".into(),
            rocksdb: format!("{ROCKSDB} 0.19.0+11.8.1"),
            lock_sha256: "aa".into(),
            prebuilt,
            variables: Map::new(),
        }
    }

    fn build() -> Build {
        Build {
            repository: "https://example.com/r".into(),
            commit: "4f2c".into(),
            version: "0.2.0".into(),
            builder: "https://example.com/b".into(),
            started: "2026-11-29T00:00:00Z".into(),
            finished: "2026-11-29T01:00:00Z".into(),
            not_run: vec!["known vulnerabilities: no network".into()],
        }
    }

    #[test]
    fn the_subjects_are_the_files_with_the_digests_that_sha256sum_prints() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("rollout.whl"), "wheel").unwrap();
        std::fs::write(folder.path().join("rollout.tar.gz"), "archive").unwrap();
        let files = digests(folder.path()).unwrap();
        let statement = statement(&build(), &toolchain(None), &files);
        let mut command = Command::new("sha256sum");
        command.args(["rollout.tar.gz", "rollout.whl"]).current_dir(folder.path());
        let subjects = statement["subject"].as_array().unwrap().iter().map(|subject| {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            format!("{}  {}", text(&subject["digest"]["sha256"]), text(&subject["name"]))
        });
        assert_eq!(subjects.collect::<Vec<_>>().join("\n"), output(command).unwrap());
    }

    #[test]
    fn it_names_the_commit_the_lock_and_a_prebuilt_rocksdb() {
        let definition = |prebuilt| {
            let statement = statement(&build(), &toolchain(prebuilt), &[]);
            assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
            assert_eq!(commit(&statement.to_string()).unwrap(), "4f2c");
            statement["predicate"]["buildDefinition"].clone()
        };
        let from_source = definition(None);
        let dependencies = &from_source["resolvedDependencies"];
        assert_eq!(dependencies[0]["uri"], "git+https://example.com/r@4f2c");
        assert_eq!(dependencies[0]["digest"]["gitCommit"], "4f2c");
        assert_eq!(dependencies[1], json!({"name": "Cargo.lock", "digest": {"sha256": "aa"}}));
        assert_eq!(from_source["internalParameters"]["rocksdb"]["prebuilt"], false);
        let archive = Digest { name: "librocksdb.a".into(), sha256: "bb".into() };
        let linked = definition(Some(archive));
        assert_eq!(linked["internalParameters"]["rocksdb"]["prebuilt"], true);
        assert_eq!(linked["resolvedDependencies"][2]["digest"]["sha256"], "bb");
    }

    #[test]
    fn it_says_which_checks_could_not_run() {
        let statement = statement(&build(), &toolchain(None), &[]);
        let metadata = &statement["predicate"]["runDetails"]["metadata"];
        assert_eq!(metadata["rollout_notRun"], json!(["known vulnerabilities: no network"]));
    }

    #[test]
    fn a_text_that_names_no_commit_is_refused() {
        assert!(commit("").is_err());
        assert!(commit("{}").unwrap_err().to_string().contains("names no commit"));
    }

    #[test]
    fn the_version_of_rocksdb_is_in_this_lock() {
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.lock");
        let lock = std::fs::read_to_string(lock).unwrap();
        assert!(locked_version(&lock, ROCKSDB).is_some_and(|version| version.contains('+')));
        assert_eq!(locked_version(&lock, "no-such-package"), None);
    }
}

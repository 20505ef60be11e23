//! Owns: the message when a command names no cluster: how to name one, and which development cluster is nearby.
//!
//! Invariant: a context is suggested, never used: a command uses the cluster that its user named, or none.
//! Absent: starting a cluster.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rollout_batch::hint::shell_path;

/// Where `rollout dev` keeps a cluster, relative to its working directory.
const DEV_DIR: &str = ".rollout/dev";

/// The context file of a development cluster in `dir` or above it, for the program of that name.
pub(super) fn dev_context(dir: &Path, program: Option<&OsStr>) -> Option<PathBuf> {
    let operators = Path::new(program?).file_stem() == Some(OsStr::new("rolloutctl"));
    let file = if operators { "admin.toml" } else { "client.toml" };
    let mut files = dir.ancestors().map(|above| above.join(DEV_DIR).join(file));
    files.find(|path| path.is_file())
}

/// How to name a cluster.
pub(super) fn advice(dev: Option<&Path>) -> String {
    let mut text = "set ROLLOUT_CONTEXT to a context file, or give --context NAME|FILE, or choose one with `rolloutctl \
                    context use NAME`; or give --endpoint with --ca-cert, --cert and --key, or with --insecure-plaintext"
        .to_owned();
    if let Some(path) = dev {
        let command = format!("export ROLLOUT_CONTEXT={}", shell_path(path));
        text += &format!("\n  a development cluster is near; to use it: {command}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_development_cluster_above_is_found_with_the_context_of_the_program() {
        let root = tempfile::tempdir().unwrap();
        let (dev, below) = (root.path().join(DEV_DIR), root.path().join("a b/c"));
        std::fs::create_dir_all(&below).unwrap();
        let found = |program: &str| dev_context(&below, Some(OsStr::new(program)));
        assert_eq!(found("rollout"), None);
        std::fs::create_dir_all(&dev).unwrap();
        for file in ["client.toml", "admin.toml"] {
            std::fs::write(dev.join(file), "").unwrap();
        }
        assert_eq!(found("/usr/bin/rollout"), Some(dev.join("client.toml")));
        assert_eq!(found("rolloutctl"), Some(dev.join("admin.toml")));
        assert_eq!(dev_context(&dev, None), None);
    }

    #[test]
    fn the_command_that_is_suggested_is_one_word_for_a_shell() {
        let text = advice(Some(Path::new("/a b/client.toml")));
        assert!(text.ends_with("export ROLLOUT_CONTEXT='/a b/client.toml'"), "{text}");
        assert!(advice(None).starts_with("set ROLLOUT_CONTEXT"));
    }
}

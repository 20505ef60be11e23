//! Owns: the sentences that say that no release exists: each must be gone when one is prepared.
//!
//! Invariant: every tracked file is read, apart from the sources of `cargo xtask release`. Letter case and line breaks do
//! not matter.
//! Absent: changing the sentences; each needs another text.

use crate::run::output;
use anyhow::{Context as _, Result, ensure};
use std::path::Path;
use std::process::Command;

const NONE_YET: &str = "no release exists yet";
/// The sources that contain the sentence in order to find it.
const OWN: &str = "xtask/src/release/";

/// Fails if a tracked file says that no release exists.
///
/// # Errors
/// When one does, or git cannot list the files.
pub(super) fn check(root: &Path) -> Result<()> {
    let mut list = Command::new("git");
    // With NUL between them, git does not quote names.
    list.args(["ls-files", "-z"]).current_dir(root);
    let files = output(list).context("cannot list the tracked files")?;
    let mut found = Vec::new();
    for file in files.split('\0').filter(|file| !file.is_empty() && !file.starts_with(OWN)) {
        let bytes = std::fs::read(root.join(file)).with_context(|| file.to_owned())?;
        if contains(&String::from_utf8_lossy(&bytes)) {
            found.push(file);
        }
    }
    let names = found.join(", ");
    ensure!(found.is_empty(), "change these files, which say \"{NONE_YET}\": {names}");
    Ok(())
}

fn contains(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase().contains(NONE_YET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tracked_file_with_the_sentence_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let git = |args: &[&str]| {
            let mut command = Command::new("git");
            command.args(args).current_dir(root);
            output(command).unwrap()
        };
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        git(&["init", "--quiet"]);
        write("pages/ä.md", "Status: no release\n  exists yet: build it.\n");
        write("CHANGELOG.md", "No release exists yet.\n");
        write("README.md", "A release exists.\n");
        write("xtask/src/release/first_release.rs", "no release exists yet\n");
        git(&["add", "--all"]);
        write("notes.txt", "no release exists yet\n");
        let refused = check(root).unwrap_err().to_string();
        assert!(refused.ends_with(": CHANGELOG.md, pages/ä.md"), "{refused}");
        write("pages/ä.md", "Releases are on GitHub.\n");
        write("CHANGELOG.md", "- A.\n");
        check(root).unwrap();
    }
}

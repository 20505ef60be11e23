//! Owns: the tag of a release in this clone.
//!
//! Invariant: with `--tag`, only the commit of the tag is packed, and only if the main branch contains it. A clone that
//! does not know the main branch says so.
//! Absent: creating the tag.

use crate::run::output;
use anyhow::{Context as _, Result, ensure};
use std::path::Path;
use std::process::Command;

/// The main branch as of the last fetch.
const MAIN: &str = "refs/remotes/origin/main";

/// The commit of a tag.
///
/// # Errors
/// When this clone has no such tag.
pub(super) fn commit(root: &Path, tag: &str) -> Result<String> {
    let name = format!("refs/tags/{tag}^{{commit}}");
    let found = output(git(root, &["rev-parse", "--verify", &name]));
    found.with_context(|| format!("this clone has no tag {tag}"))
}

/// Compares the tag with HEAD and with the main branch. Returns what could not be checked, and why.
///
/// # Errors
/// When the tag is not at HEAD, or the main branch does not contain it.
pub(super) fn check(root: &Path, tag: &str, head: &str) -> Result<Option<String>> {
    let commit = commit(root, tag)?;
    ensure!(commit == head, "the tag {tag} is at commit {commit}, and HEAD at {head}");
    if output(git(root, &["rev-parse", "--verify", MAIN])).is_err() {
        return Ok(Some(format!("the tag is on the main branch: this clone has no {MAIN}")));
    }
    let contained = output(git(root, &["merge-base", "--is-ancestor", head, MAIN]));
    contained.with_context(|| {
        format!("{MAIN} does not contain the tag {tag}; if it is out of date, run `git fetch`")
    })?;
    Ok(None)
}

fn git(root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.args(args).current_dir(root);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs git as a person whose configuration signs nothing.
    fn done(root: &Path, args: &[&str]) -> String {
        let mut command = git(root, &["-c", "user.name=a", "-c", "user.email=a@example.com"]);
        command.args(["-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]).args(args);
        output(command).unwrap()
    }

    /// Makes a commit with a tag; returns the commit.
    fn tagged(root: &Path, tag: &str) -> String {
        done(root, &["commit", "--quiet", "--allow-empty", "--message", tag]);
        done(root, &["tag", "--annotate", "--message", tag, tag]);
        done(root, &["rev-parse", "HEAD"])
    }

    #[test]
    fn only_a_tag_at_head_on_the_main_branch_passes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let refused = |tag: &str, head: &str| check(root, tag, head).unwrap_err().to_string();
        done(root, &["init", "--quiet"]);
        let first = tagged(root, "v0.1.0");
        let not_run = check(root, "v0.1.0", &first).unwrap();
        assert!(not_run.is_some_and(|reason| reason.contains("this clone has no")));
        done(root, &["update-ref", MAIN, "HEAD"]);
        assert_eq!(check(root, "v0.1.0", &first).unwrap(), None);
        let second = tagged(root, "v0.2.0");
        assert!(refused("v0.2.0", &second).contains("does not contain the tag v0.2.0"));
        assert!(refused("v0.1.0", &second).contains("is at commit"));
        assert!(refused("v0.3.0", &second).contains("no tag v0.3.0"));
        done(root, &["update-ref", MAIN, "HEAD"]);
        assert_eq!(check(root, "v0.2.0", &second).unwrap(), None);
    }
}

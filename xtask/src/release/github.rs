//! Owns: calls of GitHub's program `gh`.
//!
//! Invariant: each call names the repository: `gh` would otherwise take it from the remotes of the clone, which may be a
//! fork. A draft is created only if no other release has its tag.
//! Absent: what is uploaded.

use crate::run::{output, plain};
use crate::workspace::Workspace;
use anyhow::{Context as _, Result, ensure};
use std::path::{Path, PathBuf};

/// A repository on GitHub.
pub(super) struct Repository<'a> {
    host: &'a str,
    /// With its owner.
    name: &'a str,
}

impl<'a> Repository<'a> {
    /// The one with this address.
    ///
    /// # Errors
    /// When the address has another form.
    pub(super) fn at(address: &'a str) -> Result<Self> {
        let parts = address.strip_prefix("https://").and_then(|rest| rest.split_once('/'));
        let parts = parts.filter(|(_, name)| name.split('/').count() == 2);
        let (host, name) = parts.with_context(|| format!("{address} is no repository"))?;
        Ok(Self { host, name })
    }

    /// Fails if a release has this tag, public or not. `gh release create` would add a second draft.
    ///
    /// # Errors
    /// When one has it, or `gh` cannot list the releases.
    pub(super) fn check_free(&self, workspace: &Workspace, tag: &str) -> Result<()> {
        let mut gh = workspace.command("gh", &[]);
        gh.args(self.listing(tag));
        is_free(tag, &output(gh).context("cannot list the releases on GitHub")?)
    }

    /// Creates a draft with these notes and files. Returns whether all is uploaded.
    ///
    /// # Errors
    /// When `gh` cannot be started.
    pub(super) fn draft(
        &self,
        workspace: &Workspace,
        (tag, title): (&str, &str),
        notes: &Path,
        files: &[PathBuf],
    ) -> Result<bool> {
        let mut gh = workspace.command("gh", &[]);
        gh.args(self.creation(tag, title)).arg("--notes-file").arg(notes).args(files);
        Ok(plain(gh)?.success())
    }

    /// The arguments of a call that prints the addresses of the releases with this tag. `gh release view` fails in the
    /// same way if there is none and if GitHub cannot be reached.
    fn listing(&self, tag: &str) -> Vec<String> {
        let path = format!("repos/{}/releases?per_page=100", self.name);
        let query = format!(".[] | select(.tag_name == \"{tag}\") | .html_url");
        ["api", "--hostname", self.host, "--paginate", "--jq", &query, &path]
            .map(str::to_owned)
            .into()
    }

    fn creation(&self, tag: &str, title: &str) -> Vec<String> {
        let repository = format!("{}/{}", self.host, self.name);
        let target = ["release", "create", tag, "--repo", &repository];
        let options = ["--draft", "--verify-tag", "--title", title];
        target.into_iter().chain(options).map(str::to_owned).collect()
    }
}

/// Fails if a release is listed.
fn is_free(tag: &str, listed: &str) -> Result<()> {
    ensure!(
        listed.is_empty(),
        "GitHub already has a release for {tag}: {listed}\n\
         If it is a draft that an upload left incomplete, delete it and repeat the command"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "https://github.com/rollout-project/rollout";

    #[test]
    fn each_call_names_the_repository() {
        let repository = Repository::at(ADDRESS).unwrap();
        let listing = repository.listing("v0.2.0").join(" ");
        assert!(listing.starts_with("api --hostname github.com "), "{listing}");
        assert!(listing.ends_with(" repos/rollout-project/rollout/releases?per_page=100"));
        assert!(listing.contains("select(.tag_name == \"v0.2.0\")"), "{listing}");
        assert_eq!(
            repository.creation("v0.2.0", "rollout 0.2.0").join(" "),
            "release create v0.2.0 --repo github.com/rollout-project/rollout --draft --verify-tag \
             --title rollout 0.2.0"
        );
    }

    #[test]
    fn an_address_of_another_form_is_refused() {
        for address in ["http://github.com/a/b", "https://github.com/a", "https://a/b/c/d", "a/b"] {
            assert!(Repository::at(address).is_err(), "{address}");
        }
    }

    #[test]
    fn a_release_with_the_same_tag_is_named_and_refused() {
        is_free("v0.2.0", "").unwrap();
        let draft = "https://github.com/rollout-project/rollout/releases/tag/untagged-1";
        let refused = is_free("v0.2.0", draft).unwrap_err().to_string();
        assert!(refused.contains("v0.2.0") && refused.contains(draft), "{refused}");
    }
}

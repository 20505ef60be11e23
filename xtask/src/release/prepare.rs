//! Owns: `cargo xtask release prepare`: the version in every file that carries it, and the section of the changelog.
//!
//! Invariant: every new text is made before the first file is written, so that a refusal changes nothing.
//! Absent: the commit and the tag.

use super::version::{LINES, Version, images_set, line_set, lock_set};
use super::{changelog, first_release};
use crate::run::output;
use crate::workspace::Workspace;
use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

const CHANGELOG: &str = "CHANGELOG.md";
const LOCK: &str = "Cargo.lock";

/// New texts of files, by their paths in the repository.
type Texts = BTreeMap<PathBuf, String>;

/// Prepares the commit of a release.
///
/// # Errors
/// When the tree has changes, a file says that no release exists, or the version or the changelog does not fit.
pub(super) fn run(workspace: &Workspace, version: Version) -> Result<bool> {
    clean(&workspace.root)?;
    first_release::check(&workspace.root)?;
    let present = Version::present(workspace)?;
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%d"]);
    let tagged = tagged(&workspace.root, present)?;
    let (texts, packages) = texts(&workspace.root, &tagged, (present, version), &output(date)?)?;
    let all = workspace.packages.len();
    ensure!(packages == all, "{LOCK} has {packages} packages of {present}, the workspace {all}");
    for (path, text) in &texts {
        let path = workspace.root.join(path);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    println!("version {present} -> {version}, in {} files:", texts.len());
    texts.keys().for_each(|path| println!("  {}", path.display()));
    println!("next: read `git diff`, then `git commit --all --message 'release: {version}'`");
    println!("docs/releasing.md lists the steps after that");
    Ok(true)
}

/// Fails if the working tree differs from its commit.
///
/// # Errors
/// When it does, untracked files included.
pub(super) fn clean(root: &Path) -> Result<()> {
    let mut status = Command::new("git");
    // Whatever the user's configuration says of untracked files.
    status.args(["status", "--porcelain", "--untracked-files=normal"]).current_dir(root);
    let changes = output(status)?;
    ensure!(changes.is_empty(), "commit or remove these changes first:\n{changes}");
    Ok(())
}

/// The files of deployments and pages that may name an image of this version.
fn tagged(root: &Path, present: Version) -> Result<Vec<PathBuf>> {
    let mut list = Command::new("git");
    list.args(["ls-files", "deploy", "docs"]).current_dir(root);
    let tag = format!(":{present}");
    let names = |path: &PathBuf| {
        std::fs::read_to_string(root.join(path)).is_ok_and(|text| text.contains(&tag))
    };
    Ok(output(list)?.lines().map(PathBuf::from).filter(names).collect())
}

/// The new texts of the files that change, and how many packages Cargo.lock has with the version.
fn texts(
    root: &Path,
    tagged: &[PathBuf],
    (present, version): (Version, Version),
    date: &str,
) -> Result<(Texts, usize)> {
    ensure!(version >= present, "{version} is lower than the present version, {present}");
    let mut texts = Texts::new();
    let changelog = read(root, &texts, Path::new(CHANGELOG))?;
    texts.insert(CHANGELOG.into(), changelog::released(&changelog, version, date)?);
    for (file, line) in LINES {
        let text = read(root, &texts, Path::new(file))?;
        let text = line_set(&text, line, present, version).with_context(|| (*file).to_owned())?;
        texts.insert(file.into(), text);
    }
    let (lock, packages) = lock_set(&read(root, &texts, Path::new(LOCK))?, present, version);
    texts.insert(LOCK.into(), lock);
    for path in tagged {
        let text = images_set(&read(root, &texts, path)?, present, version);
        texts.insert(path.clone(), text);
    }
    let mut changed = Texts::new();
    for (path, text) in texts {
        if read(root, &Texts::new(), &path)? != text {
            changed.insert(path, text);
        }
    }
    Ok((changed, packages))
}

/// The new text of a file if there is one, else the text that it has.
fn read(root: &Path, texts: &Texts, path: &Path) -> Result<String> {
    match texts.get(path) {
        Some(text) => Ok(text.clone()),
        None => {
            std::fs::read_to_string(root.join(path)).with_context(|| path.display().to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    /// A repository with one package, at version 0.1.0.
    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            CHANGELOG,
            "# Changelog\n\n## [Unreleased]\n\n- A.\n\n[Unreleased]: https://example.com/r/commits/main\n",
        );
        write(LOCK, "version = 4\n\n[[package]]\nname = \"xtask\"\nversion = \"0.1.0\"\n");
        write("Cargo.toml", "[workspace.package]\nversion = \"0.1.0\"\n");
        write("worker/python/pyproject.toml", "[project]\nversion = \"0.1.0\"\n");
        write("worker/python/rollout/__init__.py", "__version__ = \"0.1.0\"\n");
        write("deploy/helm/rollout/Chart.yaml", "version: 0.1.0\nappVersion: \"0.1.0\"\n");
        write("deploy/container/README.md", "docker build -t rollout:0.1.0 .\n");
        folder
    }

    fn prepared(root: &Path, to: &str) -> Result<(Texts, usize)> {
        let tagged = [PathBuf::from("deploy/container/README.md")];
        texts(root, &tagged, (version("0.1.0"), version(to)), "2026-11-29")
    }

    #[test]
    fn every_file_that_carries_the_version_gets_the_new_one() {
        let repository = repository();
        let (texts, packages) = prepared(repository.path(), "0.2.0").unwrap();
        assert_eq!(packages, 1);
        assert_eq!(texts.len(), 7);
        for (path, text) in &texts {
            assert!(!text.contains("0.1.0"), "{}: {text}", path.display());
            assert!(text.contains("0.2.0"), "{}: {text}", path.display());
        }
        let chart = &texts[Path::new("deploy/helm/rollout/Chart.yaml")];
        assert_eq!(chart, "version: 0.2.0\nappVersion: \"0.2.0\"\n");
    }

    #[test]
    fn the_present_version_can_be_released_once() {
        let repository = repository();
        let (texts, _) = prepared(repository.path(), "0.1.0").unwrap();
        assert_eq!(texts.len(), 1);
        let changelog = &texts[Path::new(CHANGELOG)];
        let more = changelog.replace("## [Unreleased]\n", "## [Unreleased]\n\n- B.\n");
        std::fs::write(repository.path().join(CHANGELOG), more).unwrap();
        let refused = prepared(repository.path(), "0.1.0").unwrap_err().to_string();
        assert!(refused.contains("has a section of 0.1.0 already"), "{refused}");
    }

    #[test]
    fn a_lower_version_and_a_file_without_its_line_are_refused() {
        let repository = repository();
        let refused = prepared(repository.path(), "0.0.9").unwrap_err().to_string();
        assert!(refused.contains("lower"), "{refused}");
        std::fs::write(repository.path().join("Cargo.toml"), "version = \"0.1.1\"\n").unwrap();
        let refused = prepared(repository.path(), "0.2.0").unwrap_err().to_string();
        assert!(refused.contains("Cargo.toml"), "{refused}");
    }

    #[test]
    fn a_tree_with_a_change_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let mut init = Command::new("git");
        init.args(["init", "--quiet"]).current_dir(folder.path());
        output(init).unwrap();
        let mut hide = Command::new("git");
        hide.args(["config", "status.showUntrackedFiles", "no"]).current_dir(folder.path());
        output(hide).unwrap();
        clean(folder.path()).unwrap();
        std::fs::write(folder.path().join("a"), "a").unwrap();
        let refused = clean(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("?? a"), "{refused}");
    }

    /// A new file that carries the version belongs into `LINES`; a file that no longer does must leave it.
    #[test]
    fn this_repository_can_be_prepared() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let present = version(env!("CARGO_PKG_VERSION"));
        for (file, line) in LINES {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            line_set(&text, line, present, version("999.0.0")).with_context(|| *file).unwrap();
        }
        let lock = std::fs::read_to_string(root.join(LOCK)).unwrap();
        assert!(lock_set(&lock, present, version("999.0.0")).1 > 15);
    }
}

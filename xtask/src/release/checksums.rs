//! Owns: SHA256SUMS: the digest of each file in the folder of a release.
//!
//! Invariant: a folder passes only if each of its files is listed with its digest, and each listed file is there. The
//! verification report is not listed: it changes after the files are built.
//! Absent: who built the files; that is `provenance`.

use super::REPORT;
use crate::run::output;
use anyhow::{Context as _, Result, ensure};
use std::path::Path;
use std::process::Command;

pub(super) const SUMS: &str = "SHA256SUMS";

/// A file and its SHA-256 in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Digest {
    pub(super) name: String,
    pub(super) sha256: String,
}

/// The digest of a file.
///
/// # Errors
/// When it cannot be read.
pub(super) fn sha256(path: &Path) -> Result<String> {
    let mut command = Command::new("sha256sum");
    command.arg("--").arg(path);
    let printed = output(command)?;
    let digest = printed.split(' ').next().unwrap_or_default();
    let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    ensure!(is_digest, "sha256sum printed no digest of {}: {printed}", path.display());
    Ok(digest.to_owned())
}

/// The files that SHA256SUMS lists, in the order of their names.
///
/// # Errors
/// When there is none, or one cannot be read.
pub(super) fn digests(folder: &Path) -> Result<Vec<Digest>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let name = entry?.file_name();
        let name = name.to_str().context("the name of a file is not UTF-8")?.to_owned();
        if name != SUMS && name != REPORT {
            let sha256 = sha256(&folder.join(&name))?;
            found.push(Digest { name, sha256 });
        }
    }
    ensure!(!found.is_empty(), "{} has no files", folder.display());
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The text of SHA256SUMS, in the form of `sha256sum`.
fn text(digests: &[Digest]) -> String {
    digests.iter().map(|Digest { name, sha256 }| format!("{sha256}  {name}\n")).collect()
}

/// Writes SHA256SUMS.
///
/// # Errors
/// When a file cannot be read, or SHA256SUMS cannot be written.
pub(super) fn write(folder: &Path) -> Result<()> {
    let path = folder.join(SUMS);
    std::fs::write(&path, text(&digests(folder)?)).with_context(|| path.display().to_string())
}

/// Compares the files with SHA256SUMS; returns the listed ones.
///
/// # Errors
/// When a file differs, or the names do.
pub(super) fn check(folder: &Path) -> Result<Vec<Digest>> {
    let path = folder.join(SUMS);
    let listed = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let found = digests(folder)?;
    let present = text(&found);
    let lacks = |a: &str, b: &str| -> Vec<String> {
        a.lines().filter(|line| !b.lines().any(|other| other == *line)).map(str::to_owned).collect()
    };
    let (more, fewer) = (lacks(&present, &listed), lacks(&listed, &present));
    ensure!(more.is_empty(), "not listed in {}: {}", path.display(), more.join(", "));
    ensure!(fewer.is_empty(), "not as listed in {}: {}", path.display(), fewer.join(", "));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the file that contains `a`.
    const OF_A: &str = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.whl", "a.tar.gz", REPORT] {
            std::fs::write(folder.path().join(name), "a").unwrap();
        }
        folder
    }

    #[test]
    fn each_file_is_listed_in_the_form_of_sha256sum_except_the_verification_report() {
        let folder = folder();
        write(folder.path()).unwrap();
        let sums = std::fs::read_to_string(folder.path().join(SUMS)).unwrap();
        assert_eq!(sums, format!("{OF_A}  a.tar.gz\n{OF_A}  b.whl\n"));
        let mut check = Command::new("sha256sum");
        check.args(["--check", "--strict", SUMS]).current_dir(folder.path());
        assert_eq!(output(check).unwrap(), "a.tar.gz: OK\nb.whl: OK");
        assert_eq!(super::check(folder.path()).unwrap().len(), 2);
    }

    #[test]
    fn a_file_that_differs_is_missing_or_is_not_listed_fails() {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        assert!(check(folder.path()).is_err(), "there is no SHA256SUMS");
        write(folder.path()).unwrap();
        std::fs::write(at("b.whl"), "b").unwrap();
        assert!(check(folder.path()).is_err());
        std::fs::remove_file(at("b.whl")).unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("not as listed"));
        std::fs::write(at("b.whl"), "a").unwrap();
        check(folder.path()).unwrap();
        std::fs::write(at("c"), "a").unwrap();
        assert!(check(folder.path()).unwrap_err().to_string().contains("not listed"));
    }

    #[test]
    fn an_empty_folder_is_no_release() {
        assert!(write(tempfile::tempdir().unwrap().path()).is_err());
    }
}

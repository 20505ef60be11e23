//! Owns: the commit of this program, and the text that `--version` prints after the program's name.
//!
//! Invariant: only the binary targets know the commit (`option_env!("ROLLOUT_COMMIT")`), so that a new commit relinks
//! the programs and rebuilds no library.
//! Absent: finding the commit; `cargo xtask` does that and sets the variable.

use std::sync::OnceLock;

static COMMIT: OnceLock<&'static str> = OnceLock::new();

/// The version and, if the build knew it, the commit: `0.1.0 (4f2c…)`. The first call of a process names the commit.
pub fn version(commit: Option<&'static str>) -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    if let Some(commit) = commit.filter(|commit| !commit.is_empty()) {
        COMMIT.get_or_init(|| commit);
    }
    TEXT.get_or_init(|| text(commit))
}

/// The commit that this program was built from, if the build knew it.
pub fn commit() -> Option<&'static str> {
    COMMIT.get().copied()
}

fn text(commit: Option<&str>) -> String {
    match commit.filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("{} ({commit})", env!("CARGO_PKG_VERSION")),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_follows_the_version_if_the_build_knew_it() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(text(Some("4f2c-dirty")), format!("{version} (4f2c-dirty)"));
        assert_eq!(text(Some("")), version);
        assert_eq!(text(None), version);
    }
}

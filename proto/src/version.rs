//! Owns: the text that `--version` of every program prints after the program's name.
//!
//! Invariant: only the binary targets know the commit (`option_env!("ROLLOUT_COMMIT")`), so that a new commit relinks
//! the programs and rebuilds no library.
//! Absent: finding the commit; `cargo xtask` does that and sets the variable.

use std::sync::OnceLock;

/// The version and, if the build knew it, the commit: `0.1.0 (4f2c…)`.
pub fn version(commit: Option<&str>) -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| text(commit))
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

//! Files of an agent's directory, against what is kept in `worker/testdata`.
//!
//! *Invariant:* a build reads what an earlier one wrote. `ROLLOUT_REWRITE=1` writes the files anew, which needs a reason:
//! agents in use have the old ones.

use std::path::Path;

/// Compares a text with what is kept in a file, and returns that.
pub(crate) fn check(file: &str, text: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
    if std::env::var_os("ROLLOUT_REWRITE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{}: {e} (ROLLOUT_REWRITE=1 writes it)", path.display()));
    assert_eq!(kept, text, "{} (ROLLOUT_REWRITE=1 writes it anew)", path.display());
    kept
}

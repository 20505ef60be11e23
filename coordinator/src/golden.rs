//! Compares what members answer and write with the files in `coordinator/testdata`. Only tests use this module.
//!
//! *Invariant:* the test names the first line that differs, and a missing file fails it. `ROLLOUT_REWRITE=1` rewrites
//! the files. That needs a reason: programs, logs and members of other versions read these texts and bytes.

mod operations;
mod rejections;

use std::fmt::Write as _;
use std::path::Path;

/// Compares a text with what is kept in a file.
pub(crate) fn check(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
    if std::env::var_os("ROLLOUT_REWRITE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let kept = std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{}: {e} (ROLLOUT_REWRITE=1 writes it)", path.display()));
    for (line, (kept, now)) in kept.lines().zip(text.lines()).enumerate() {
        assert_eq!(kept, now, "{}:{} (ROLLOUT_REWRITE=1 writes it anew)", path.display(), line + 1);
    }
    assert_eq!(kept, text, "{} (ROLLOUT_REWRITE=1 writes it anew)", path.display());
}

/// Bytes as text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // invariant: writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes that a text names.
fn bytes_of(hex: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.as_bytes().chunks(2).map(byte).collect()
}

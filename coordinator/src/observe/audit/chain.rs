//! The hash chain of the audit log: `prev` of a line is the BLAKE3 hash of the whole line before it, in hex, without
//! the line feed.
//!
//! *Invariant:* a partly written line is not JSON and not part of the chain, so the line after it names the last whole
//! line.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::de::IgnoredAny;
use std::collections::BTreeMap;

/// How much of a file's end is read to find its last whole line; a line has a few kilobytes.
const TAIL_BYTES: u64 = 1 << 20;

pub(super) fn hash(line: &[u8]) -> String {
    blake3::hash(line).to_hex().to_string()
}

/// The hash of the last whole line of a file; `None` if it has none, or if there is no file.
pub(super) fn hash_of_last_line(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let bytes = file.metadata()?.len();
    if bytes == 0 {
        return Ok(None);
    }
    let from = bytes.saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; usize::try_from(bytes - from).map_err(io::Error::other)?];
    file.read_exact_at(&mut tail, from)?;
    let whole = tail.rsplit(|byte| *byte == b'\n').find(|line| is_whole(line));
    Ok(whole.map(hash))
}

fn is_whole(line: &[u8]) -> bool {
    serde_json::from_slice::<BTreeMap<String, IgnoredAny>>(line).is_ok()
}

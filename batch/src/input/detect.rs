//! Owns: detecting an input's format from its first row.
//!
//! Invariant: the same input always gives the same format; an input without a row has the native format.
//! Absent: checking rows. A row of the other format is an error of its line.

use std::sync::atomic::AtomicU64;

use super::chunk::{Chunk, ChunkReader, LINE_BYTES_MAX};
use super::files::InputFile;
use super::open::open;
use super::openai::looks_like;
use super::scan::ScanError;

const CHUNK_BYTES: usize = 64 << 10;

/// Whether the first row is a line of the OpenAI Batch format.
pub fn is_openai(files: &[InputFile]) -> Result<bool, ScanError> {
    for file in files {
        let failed = |source| ScanError::Io { path: file.path.clone(), source };
        let read = AtomicU64::new(0);
        let text = open(file, &read).map_err(failed)?.text;
        let mut reader = ChunkReader::new(text, CHUNK_BYTES, LINE_BYTES_MAX);
        while let Some(chunk) = reader.next().map_err(failed)? {
            let Chunk::Lines(bytes) = chunk else { return Ok(false) };
            let mut lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
            if let Some(first) = lines.find(|line| !line.is_empty()) {
                return Ok(std::str::from_utf8(first).is_ok_and(looks_like));
            }
        }
    }
    Ok(false)
}

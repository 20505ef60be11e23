//! Owns: the text of one file of an input, wherever it is and however it is packed.
//!
//! Invariant: it is streamed; memory does not grow with the file.
//! Absent: lines.

use std::fs::File;
use std::io;
use std::sync::atomic::AtomicU64;

use super::files::InputFile;
use super::unpack::{Text, unpack};

/// Opens a file; `read` counts its own bytes as they are read.
pub(super) fn open<'a>(file: &InputFile, read: &'a AtomicU64) -> io::Result<Text<'a>> {
    match &file.object {
        Some(object) => unpack(&file.path, object.reader(), read),
        None => unpack(&file.path, File::open(&file.path)?, read),
    }
}

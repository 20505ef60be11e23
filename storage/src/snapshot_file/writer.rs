//! Owns: writing a snapshot file, from its first byte to its digest.
//!
//! Invariant: the bytes written before [`SnapshotFileWriter::finish`] are not a snapshot file. The writer holds one
//! block in memory.
//! Absent: fsync and file names; the caller provides the output.

use std::io::{self, Write};

use super::{BLOCK_BYTES, DIGEST_BYTES, MAGIC, SNAPSHOT_FILE_VERSION, SnapshotHeader};
use crate::record;

/// Writes one snapshot file.
#[derive(Debug)]
pub struct SnapshotFileWriter<W: Write> {
    out: W,
    hasher: blake3::Hasher,
    written: u64,
    block: Vec<u8>,
    records: u64,
}

impl<W: Write> SnapshotFileWriter<W> {
    /// Starts a file with its header.
    pub fn new(out: W, header: &SnapshotHeader) -> io::Result<Self> {
        let mut file =
            Self { out, hasher: blake3::Hasher::new(), written: 0, block: Vec::new(), records: 0 };
        file.put(&MAGIC)?;
        file.put(&SNAPSHOT_FILE_VERSION.to_le_bytes())?;
        let header = serde_json::to_vec(header).map_err(io::Error::other)?;
        file.put_sealed(&header)?;
        Ok(file)
    }

    /// Adds a record. Keys must be in ascending order.
    pub fn record(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        for part in [key, value] {
            let len = u32::try_from(part.len()).map_err(io::Error::other)?;
            self.block.extend_from_slice(&len.to_le_bytes());
        }
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        self.records += 1;
        if self.block.len() >= BLOCK_BYTES { self.close_block() } else { Ok(()) }
    }

    /// Ends the file. Returns its output and its digest.
    pub fn finish(mut self) -> io::Result<(W, [u8; DIGEST_BYTES])> {
        if !self.block.is_empty() {
            self.close_block()?;
        }
        self.put(&0u32.to_le_bytes())?;
        self.put(&self.records.to_le_bytes())?;
        let digest = *self.hasher.finalize().as_bytes();
        self.out.write_all(&digest)?;
        self.out.flush()?;
        Ok((self.out, digest))
    }

    fn close_block(&mut self) -> io::Result<()> {
        let block = std::mem::take(&mut self.block);
        self.put_sealed(&block)?;
        self.block = block;
        self.block.clear();
        Ok(())
    }

    fn put_sealed(&mut self, payload: &[u8]) -> io::Result<()> {
        let sealed = record::seal(&self.written.to_le_bytes(), payload);
        let len = u32::try_from(sealed.len()).map_err(io::Error::other)?;
        self.put(&len.to_le_bytes())?;
        self.put(&sealed)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

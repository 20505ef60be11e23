//! Owns: reading a snapshot file. It checks each record before it returns it, and the whole file at the end.
//!
//! Invariant: after the last record, the digest, the count and the end of the file have been checked. A caller that
//! uses records before that may use a damaged file. The reader holds one block in memory.
//! Absent: what records mean.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::{
    DIGEST_BYTES, LEN_MAX, MAGIC, SNAPSHOT_FILE_VERSION, SnapshotFileError, SnapshotHeader,
    SnapshotProblem,
};
use crate::record;

/// A key and its value.
type Record = (Vec<u8>, Vec<u8>);

/// The content of a complete file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotSummary {
    /// Records of the image.
    pub records: u64,
    /// The file's length in bytes.
    pub bytes: u64,
    /// Its digest: blake3 of the file without its last 32 bytes, which are the digest.
    pub digest: [u8; DIGEST_BYTES],
}

/// Reads one snapshot file. As an iterator it ends after the first error. A complete file has a
/// [`summary`](Self::summary) then.
pub struct SnapshotFileReader {
    path: PathBuf,
    from: BufReader<File>,
    hasher: blake3::Hasher,
    read: u64,
    header: SnapshotHeader,
    block: Block,
    records: u64,
    last_key: Option<Vec<u8>>,
    state: State,
}

enum State {
    Reading,
    Failed,
    Whole(SnapshotSummary),
}

#[derive(Default)]
struct Block {
    bytes: Vec<u8>,
    at: usize,
}

impl SnapshotFileReader {
    /// Opens a file and reads its header.
    pub fn open(path: &Path) -> Result<Self, SnapshotFileError> {
        let failed = |problem| SnapshotFileError { path: path.to_owned(), problem };
        let from = File::open(path).map_err(|error| failed(SnapshotProblem::Io(error)))?;
        let mut file = Self {
            path: path.to_owned(),
            from: BufReader::with_capacity(1 << 20, from),
            hasher: blake3::Hasher::new(),
            read: 0,
            header: SnapshotHeader {
                cluster_id: String::new(),
                member: String::new(),
                index: 0,
                term: 0,
                taken_unix_ms: 0,
                cluster_version: 0,
                program: String::new(),
                salvaged: false,
                members: Vec::new(),
            },
            block: Block::default(),
            records: 0,
            last_key: None,
            state: State::Reading,
        };
        file.header = file.read_header().map_err(failed)?;
        Ok(file)
    }

    /// The file's header.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// Bytes read so far, for a progress display.
    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    /// The summary of the file, once all of it was read and is complete.
    pub fn summary(&self) -> Option<SnapshotSummary> {
        match self.state {
            State::Whole(summary) => Some(summary),
            _ => None,
        }
    }

    fn read_header(&mut self) -> Result<SnapshotHeader, SnapshotProblem> {
        let mut magic = [0; MAGIC.len()];
        match self.take(&mut magic, "its first bytes") {
            Ok(()) if magic == MAGIC => {}
            Ok(()) | Err(SnapshotProblem::Truncated { .. }) => {
                return Err(SnapshotProblem::Foreign);
            }
            Err(error) => return Err(error),
        }
        let version = u32::from_le_bytes(self.take_array("its version")?);
        if version > SNAPSHOT_FILE_VERSION {
            return Err(SnapshotProblem::Newer {
                found: version,
                supported: SNAPSHOT_FILE_VERSION,
            });
        }
        if version == 0 {
            return Err(self.damaged("there is no format 0"));
        }
        let at = self.read;
        let len = u32::from_le_bytes(self.take_array("its header")?);
        let header = self.take_sealed(at, len, "its header")?;
        serde_json::from_slice(&header).map_err(|error| self.damaged(error.to_string()))
    }

    fn next_record(&mut self) -> Result<Option<Record>, SnapshotProblem> {
        if self.block.at == self.block.bytes.len() {
            let at = self.read;
            let len = u32::from_le_bytes(self.take_array("a block")?);
            if len == 0 {
                return self.end().map(|()| None);
            }
            self.block = Block { bytes: self.take_sealed(at, len, "a block")?, at: 0 };
        }
        let Some((key, value)) = self.block.next() else {
            return Err(self.damaged("a record reaches beyond its block"));
        };
        if self.last_key.as_ref().is_some_and(|last| *last >= key) {
            return Err(self.damaged("keys are not in order"));
        }
        self.last_key = Some(key.clone());
        self.records += 1;
        Ok(Some((key, value)))
    }

    fn end(&mut self) -> Result<(), SnapshotProblem> {
        let records = u64::from_le_bytes(self.take_array("its end")?);
        let digest = *self.hasher.finalize().as_bytes();
        let expected: [u8; DIGEST_BYTES] = self.take_array("its digest")?;
        if expected != digest {
            return Err(self.damaged("its digest does not match"));
        }
        if records != self.records {
            return Err(self.damaged(format!("it has {} of {records} records", self.records)));
        }
        match self.from.read(&mut [0]) {
            Ok(0) => {}
            Ok(_) => return Err(self.damaged("bytes follow its end")),
            Err(error) => return Err(SnapshotProblem::Io(error)),
        }
        self.state = State::Whole(SnapshotSummary { records, bytes: self.read, digest });
        Ok(())
    }

    fn take_sealed(
        &mut self,
        at: u64,
        len: u32,
        what: &'static str,
    ) -> Result<Vec<u8>, SnapshotProblem> {
        let len = len as usize;
        if len > LEN_MAX {
            return Err(self.damaged(format!("{what} of {len} bytes")));
        }
        // Grows as bytes arrive, so that a false length costs no memory.
        let mut sealed = Vec::new();
        let wanted = len as u64;
        let got = (&mut self.from).take(wanted).read_to_end(&mut sealed);
        let got = got.map_err(SnapshotProblem::Io)? as u64;
        self.read += got;
        if got < wanted {
            return Err(SnapshotProblem::Truncated { bytes: self.read, what });
        }
        self.hasher.update(&sealed);
        match record::open(&at.to_le_bytes(), &sealed) {
            Ok(payload) => Ok(payload.to_vec()),
            Err(error) => Err(SnapshotProblem::Damaged { at, what: format!("{what}: {error}") }),
        }
    }

    fn take_array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], SnapshotProblem> {
        let mut bytes = [0; N];
        self.take(&mut bytes, what)?;
        Ok(bytes)
    }

    fn take(&mut self, bytes: &mut [u8], what: &'static str) -> Result<(), SnapshotProblem> {
        match self.from.read_exact(bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(SnapshotProblem::Truncated { bytes: self.read, what });
            }
            Err(error) => return Err(SnapshotProblem::Io(error)),
        }
        self.read += bytes.len() as u64;
        self.hasher.update(bytes);
        Ok(())
    }

    fn damaged(&self, what: impl Into<String>) -> SnapshotProblem {
        SnapshotProblem::Damaged { at: self.read, what: what.into() }
    }
}

impl Block {
    /// The next record; `None` if the rest is not a record.
    fn next(&mut self) -> Option<Record> {
        let rest = &self.bytes[self.at..];
        let (key_len, rest) = rest.split_first_chunk::<4>()?;
        let (value_len, rest) = rest.split_first_chunk::<4>()?;
        let key_len = u32::from_le_bytes(*key_len) as usize;
        let value_len = u32::from_le_bytes(*value_len) as usize;
        let (key, rest) = rest.split_at_checked(key_len)?;
        let value = rest.get(..value_len)?;
        self.at += 8 + key_len + value_len;
        Some((key.to_vec(), value.to_vec()))
    }
}

impl Iterator for SnapshotFileReader {
    type Item = Result<Record, SnapshotFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if !matches!(self.state, State::Reading) {
            return None;
        }
        match self.next_record() {
            Ok(record) => record.map(Ok),
            Err(problem) => {
                self.state = State::Failed;
                Some(Err(SnapshotFileError { path: self.path.clone(), problem }))
            }
        }
    }
}

impl std::fmt::Debug for SnapshotFileReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotFileReader").field("path", &self.path).finish_non_exhaustive()
    }
}

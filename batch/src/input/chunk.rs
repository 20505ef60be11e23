//! Owns: files cut into chunks of whole lines.
//!
//! Invariant: the concatenated chunks of a file are the file, except for the byte-order mark at its beginning and for
//! lines that are too long, each of which is reported in its place. At most a chunk and a line are in memory.
//! Absent: where a line ends within its chunk.

use std::io::{self, Read};

/// The most bytes of a line. A longer line fits into no segment.
pub(super) const LINE_BYTES_MAX: usize = rollout_storage::SEGMENT_BYTES_MAX;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A piece of a file.
#[derive(Debug)]
pub(super) enum Chunk {
    /// Whole lines. Only the last line of a file may lack its end.
    Lines(Vec<u8>),
    /// One line that is too long, with its bytes counted up to the point where that was noticed.
    TooLong,
}

/// Reads one file.
#[derive(Debug)]
pub(super) struct ChunkReader<R> {
    source: R,
    chunk_bytes: usize,
    line_bytes_max: usize,
    /// The beginning of a line whose end was not read yet.
    carry: Vec<u8>,
    skipping: bool,
    began: bool,
    ended: bool,
    /// Bytes of the file that were read, those before the beginning included.
    read: u64,
}

impl<R: Read> ChunkReader<R> {
    pub(super) fn new(source: R, chunk_bytes: usize, line_bytes_max: usize) -> Self {
        let carry = Vec::new();
        let (skipping, began, ended) = (false, false, false);
        Self { source, chunk_bytes, line_bytes_max, carry, skipping, began, ended, read: 0 }
    }

    /// Reads the rest of a file from `offset` on, which is the beginning of a line.
    pub(super) fn resumed(source: R, offset: u64, chunk_bytes: usize) -> Self {
        let reader = Self::new(source, chunk_bytes, LINE_BYTES_MAX);
        Self { began: offset > 0, read: offset, ..reader }
    }

    /// The offset in the file where the last chunk ends.
    pub(super) fn end(&self) -> u64 {
        self.read - self.carry.len() as u64
    }

    /// The next chunk; None at the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Chunk>> {
        loop {
            if self.carry.len() > self.line_bytes_max {
                self.carry.clear();
                self.skipping = true;
                return Ok(Some(Chunk::TooLong));
            }
            if self.ended {
                let last = std::mem::take(&mut self.carry);
                return Ok((!last.is_empty()).then_some(Chunk::Lines(last)));
            }
            let mut bytes = std::mem::take(&mut self.carry);
            self.fill(&mut bytes)?;
            if self.skipping {
                match bytes.iter().position(|byte| *byte == b'\n') {
                    Some(end) => {
                        bytes.drain(..=end);
                        self.skipping = false;
                    }
                    None => continue,
                }
            }
            match bytes.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => {
                    self.carry = bytes.split_off(end + 1);
                    return Ok(Some(Chunk::Lines(bytes)));
                }
                None => self.carry = bytes,
            }
        }
    }

    /// Appends up to a chunk's bytes.
    fn fill(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        bytes.reserve(self.chunk_bytes);
        let wanted = self.chunk_bytes as u64;
        let read = (&mut self.source).take(wanted).read_to_end(bytes)?;
        self.ended = (read as u64) < wanted;
        self.read += read as u64;
        if !self.began {
            self.began = true;
            if bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(bytes: &[u8], chunk: usize, max: usize) -> Vec<Option<Vec<u8>>> {
        let mut reader = ChunkReader::new(bytes, chunk, max);
        let mut lines = Vec::new();
        while let Some(chunk) = reader.next().unwrap() {
            match chunk {
                Chunk::TooLong => lines.push(None),
                Chunk::Lines(bytes) => {
                    let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
                    lines.extend(text.split(|b| *b == b'\n').map(|line| Some(line.to_vec())));
                }
            }
        }
        lines
    }

    #[test]
    fn a_line_that_is_too_long_is_reported_in_its_place() {
        let found = lines(b"ab\n0123456789abcdef\ncd\n", 4, 6);
        assert_eq!(found, [Some(b"ab".to_vec()), None, Some(b"cd".to_vec())]);
        assert_eq!(lines(b"0123456789abcdef", 4, 6), [None]);
        assert_eq!(lines(b"\xef\xbb\xbfab", 100, 6), [Some(b"ab".to_vec())]);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_the_size_of_chunks(
            bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b'x'), any::<u8>()], 0..200),
            chunk in 1usize..50,
        ) {
            prop_assume!(!bytes.starts_with(b"\xef"));
            let mut expected: Vec<Option<Vec<u8>>> =
                bytes.split(|b| *b == b'\n').map(|line| Some(line.to_vec())).collect();
            if bytes.is_empty() || bytes.ends_with(b"\n") {
                expected.pop();
            }
            prop_assert_eq!(lines(&bytes, chunk, 1000), expected);
        }
    }
}

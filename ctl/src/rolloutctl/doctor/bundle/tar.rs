//! A tar archive of regular files (POSIX ustar), as much as a bundle needs.
//!
//! Invariant: every file is followed by zeros up to a block, and the archive by two blocks of them. Deliberately absent:
//! names of more than 100 bytes, directories, owners.

use std::io::{self, Write};

const BLOCK: usize = 512;
const NAME_BYTES_MAX: usize = 100;

/// An archive that is being written.
pub(super) struct Archive<W> {
    out: W,
    unix_seconds: u64,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W, unix_seconds: u64) -> Self {
        Self { out, unix_seconds }
    }

    /// Adds a file.
    pub(super) fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(&header(name, bytes.len() as u64, self.unix_seconds)?)?;
        self.out.write_all(bytes)?;
        let over = bytes.len() % BLOCK;
        match over {
            0 => Ok(()),
            over => self.out.write_all(&[0; BLOCK][over..]),
        }
    }

    /// Ends the archive and gives back what it was written to.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        Ok(self.out)
    }
}

fn header(name: &str, size: u64, unix_seconds: u64) -> io::Result<[u8; BLOCK]> {
    if name.len() > NAME_BYTES_MAX {
        return Err(io::Error::other(format!("{name} is too long a name for an archive")));
    }
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name.as_bytes());
    let mut field =
        |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    field(100, "0000600");
    field(108, "0000000");
    field(116, "0000000");
    field(124, &format!("{size:011o}"));
    field(136, &format!("{unix_seconds:011o}"));
    // The sum counts its own field as spaces.
    field(148, "        ");
    field(156, "0");
    field(257, "ustar\0");
    field(263, "00");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_whole_blocks_and_its_headers_add_up() {
        let mut archive = Archive::new(Vec::new(), 1_700_000_000);
        archive.add("a.txt", b"hello").unwrap();
        archive.add("full", &[1; BLOCK]).unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len(), 6 * BLOCK);
        assert_eq!(&bytes[..5], b"a.txt");
        assert_eq!(&bytes[124..135], b"00000000005");
        assert_eq!(&bytes[BLOCK..BLOCK + 5], b"hello");
        let told = std::str::from_utf8(&bytes[148..154]).unwrap();
        let others = bytes[..148].iter().chain(&bytes[156..BLOCK]);
        let sum = others.map(|byte| u32::from(*byte)).sum::<u32>() + 8 * u32::from(b' ');
        assert_eq!(u32::from_str_radix(told, 8), Ok(sum));
        assert!(bytes[4 * BLOCK..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        assert!(Archive::new(Vec::new(), 0).add(&"x".repeat(101), b"").is_err());
    }
}

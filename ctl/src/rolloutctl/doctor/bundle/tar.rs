//! A tar archive of regular files (POSIX ustar, and pax for long names), as much as a bundle needs.
//!
//! Invariant: zeros pad every file to a block, and two blocks of zeros end the archive. A name too long for a header
//! is in a record before it. Deliberately absent: directories, owners.

use std::io::{self, Write};

const BLOCK: usize = 512;
/// The maximum that a header can hold.
const NAME_BYTES_MAX: usize = 100;
/// Types of entries: a file, and extended records for the next file.
const FILE: u8 = b'0';
const RECORDS: u8 = b'x';
/// The name that readers without support for records see.
const RECORDS_NAME: &str = "PaxHeaders/name";

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
        if name.len() > NAME_BYTES_MAX {
            self.entry(RECORDS, RECORDS_NAME, path_record(name).as_bytes())?;
        }
        self.entry(FILE, name, bytes)
    }

    fn entry(&mut self, kind: u8, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(&header(kind, name, bytes.len() as u64, self.unix_seconds))?;
        self.out.write_all(bytes)?;
        let over = bytes.len() % BLOCK;
        match over {
            0 => Ok(()),
            over => self.out.write_all(&[0; BLOCK][over..]),
        }
    }

    /// Ends the archive and returns the underlying writer.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        Ok(self.out)
    }
}

/// The record that names the next file: its own length, the key, the name.
fn path_record(name: &str) -> String {
    let rest = format!(" path={name}\n");
    // The length includes its own digits, which may make it one digit longer.
    let digits = |len: usize| len.to_string().len();
    let len = rest.len() + digits(rest.len());
    let len = rest.len() + digits(len);
    format!("{len}{rest}")
}

/// A header, with as much of the name as fits.
fn header(kind: u8, name: &str, size: u64, unix_seconds: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let name = &name.as_bytes()[..name.len().min(NAME_BYTES_MAX)];
    block[..name.len()].copy_from_slice(name);
    block[156] = kind;
    let mut field =
        |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    field(100, "0000600");
    field(108, "0000000");
    field(116, "0000000");
    field(124, &format!("{size:011o}"));
    field(136, &format!("{unix_seconds:011o}"));
    // The checksum counts its own field as spaces.
    field(148, "        ");
    field(257, "ustar\0");
    field(263, "00");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
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
    fn a_name_of_any_length_is_the_one_that_readers_see() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("names.tar");
        let names = ["n", "o", "p"].map(|letter| letter.repeat(90));
        let names: Vec<String> =
            (1..=3).map(|parts| names[..parts].join("/")).chain(["y".repeat(101)]).collect();
        let mut archive = Archive::new(Vec::new(), 1_700_000_000);
        for name in &names {
            archive.add(name, name.as_bytes()).unwrap();
        }
        std::fs::write(&file, archive.finish().unwrap()).unwrap();
        let listed = std::process::Command::new("tar").arg("-tf").arg(&file).output().unwrap();
        assert!(listed.status.success(), "{listed:?}");
        let listed = String::from_utf8(listed.stdout).unwrap();
        assert_eq!(listed.lines().collect::<Vec<_>>(), names);
    }

    #[test]
    fn a_record_says_how_long_it_is() {
        for bytes in [1, 90, 91, 92, 93, 150, 990, 991, 992, 993] {
            let record = path_record(&"x".repeat(bytes));
            let (len, rest) = record.split_once(' ').unwrap();
            assert_eq!(len.parse(), Ok(record.len()), "a name of {bytes} bytes");
            assert_eq!(rest, format!("path={}\n", "x".repeat(bytes)));
        }
    }
}

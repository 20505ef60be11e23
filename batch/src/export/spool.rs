//! Owns: the lines of tables until they are written: the columns are known only after all rows were seen.
//!
//! Invariant: memory does not grow with the lines: they are in packed temporary files (`TMPDIR`), which are removed
//! with the process. They are read in parts of a bounded size, so the reader can stop between two of them.
//! Absent: writing tables.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::PathBuf;

use super::format::{Schema, Types};

/// Series of an output: completions and errors.
const SERIES: usize = 2;
/// Fast compression: the file lives for minutes.
const LEVEL: i32 = 1;
/// The most lines of a part.
const PART_LINES: usize = 1024;
/// Bytes at which a part ends.
const PART_BYTES: usize = 1 << 20;

/// Lines, and the types of their fields.
pub(super) struct Spool {
    types: Types,
    series: [Lines; SERIES],
}

struct Lines {
    file: zstd::stream::write::Encoder<'static, File>,
    rows: u64,
}

/// The lines of all series, one series after the other, to be read once.
pub(super) struct Spooled {
    series: [Packed; SERIES],
    at: usize,
}

type Packed = BufReader<zstd::stream::read::Decoder<'static, BufReader<File>>>;

/// Where the files are.
pub(super) fn dir() -> PathBuf {
    std::env::temp_dir()
}

impl Spool {
    pub(super) fn new() -> io::Result<Self> {
        let series = || -> io::Result<Lines> {
            let file = zstd::stream::write::Encoder::new(tempfile::tempfile()?, LEVEL)?;
            Ok(Lines { file, rows: 0 })
        };
        Ok(Self { types: Types::default(), series: [series()?, series()?] })
    }

    /// Appends lines to a series.
    pub(super) fn push(&mut self, series: usize, lines: &str) -> io::Result<()> {
        let to = &mut self.series[series];
        for line in lines.lines() {
            self.types.note(line, series, to.rows)?;
            to.rows += 1;
        }
        to.file.write_all(lines.as_bytes())
    }

    /// The columns that fit all lines, and the lines.
    pub(super) fn end(self) -> io::Result<(Schema, Spooled)> {
        let [completions, errors] = self.series;
        let series = [completions.end()?, errors.end()?];
        Ok((self.types.schema(), Spooled { series, at: 0 }))
    }
}

impl Lines {
    fn end(self) -> io::Result<Packed> {
        let mut file = self.file.finish()?;
        file.rewind()?;
        let decoder = zstd::stream::read::Decoder::new(file)?;
        Ok(BufReader::with_capacity(1 << 20, decoder))
    }
}

impl Spooled {
    /// The next lines, with their ends, and their series.
    pub(super) fn next(&mut self) -> io::Result<Option<(usize, String)>> {
        while let Some(file) = self.series.get_mut(self.at) {
            let (mut lines, mut count) = (String::new(), 0);
            while count < PART_LINES && lines.len() < PART_BYTES && file.read_line(&mut lines)? > 0
            {
                count += 1;
            }
            if count > 0 {
                return Ok(Some((self.at, lines)));
            }
            self.at += 1;
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_as_they_were() {
        let mut spool = Spool::new().unwrap();
        spool.push(0, "{\"id\":1}\n{\"id\":2}\n").unwrap();
        spool.push(1, "{\"id\":3}\n").unwrap();
        spool.push(0, "").unwrap();
        spool.push(0, "{\"id\":4}\n").unwrap();
        let (_, mut lines) = spool.end().unwrap();
        let all = "{\"id\":1}\n{\"id\":2}\n{\"id\":4}\n".to_owned();
        assert_eq!(lines.next().unwrap(), Some((0, all)));
        assert_eq!(lines.next().unwrap(), Some((1, "{\"id\":3}\n".to_owned())));
        assert_eq!(lines.next().unwrap(), None);
        assert!(Spool::new().unwrap().push(0, "broken\n").is_err());
    }

    #[test]
    fn a_part_has_a_bounded_number_of_whole_lines() {
        let mut spool = Spool::new().unwrap();
        let long = format!("{{\"id\":\"{}\"}}\n", "x".repeat(PART_BYTES));
        spool.push(0, &"{\"id\":\"\"}\n".repeat(PART_LINES + 1)).unwrap();
        spool.push(1, &long.repeat(2)).unwrap();
        let (_, mut lines) = spool.end().unwrap();
        let mut parts = Vec::new();
        while let Some((series, part)) = lines.next().unwrap() {
            assert!(part.ends_with('\n'));
            parts.push((series, part.lines().count()));
        }
        assert_eq!(parts, [(0, PART_LINES), (0, 1), (1, 1), (1, 1)]);
    }
}

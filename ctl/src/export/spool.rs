//! Owns: the lines of tables that are still to be written, whose columns are known when all rows were seen.
//!
//! Invariant: memory does not grow with the lines: they are in packed temporary files (`TMPDIR`), which go with the process.
//! Absent: writing tables.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::PathBuf;

use super::format::{Schema, Types};

/// Series of an output: completions and errors.
const SERIES: usize = 2;
/// Packed quickly: the file lives for minutes.
const LEVEL: i32 = 1;

/// Lines, and the types of their fields.
pub(super) struct Spool {
    types: Types,
    series: [Lines; SERIES],
}

struct Lines {
    file: zstd::stream::write::Encoder<'static, File>,
    rows: u64,
}

/// The lines of one series, to be read once.
pub(super) struct Spooled {
    file: BufReader<zstd::stream::read::Decoder<'static, BufReader<File>>>,
    line: String,
}

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

    /// The columns that hold all lines, and the lines of each series.
    pub(super) fn end(self) -> io::Result<(Schema, [Spooled; SERIES])> {
        let [completions, errors] = self.series;
        Ok((self.types.schema(), [completions.end()?, errors.end()?]))
    }
}

impl Lines {
    fn end(self) -> io::Result<Spooled> {
        let mut file = self.file.finish()?;
        file.rewind()?;
        let decoder = zstd::stream::read::Decoder::new(file)?;
        Ok(Spooled { file: BufReader::with_capacity(1 << 20, decoder), line: String::new() })
    }
}

impl Spooled {
    /// The next line, with its end.
    pub(super) fn next(&mut self) -> io::Result<Option<&str>> {
        self.line.clear();
        let read = self.file.read_line(&mut self.line)?;
        Ok((read > 0).then_some(&self.line))
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
        let (_, series) = spool.end().unwrap();
        let found = series.map(|mut lines| {
            let mut all = Vec::new();
            while let Some(line) = lines.next().unwrap() {
                all.push(line.to_owned());
            }
            all.concat()
        });
        assert_eq!(found, ["{\"id\":1}\n{\"id\":2}\n{\"id\":4}\n", "{\"id\":3}\n"]);
        assert!(Spool::new().unwrap().push(0, "broken\n").is_err());
    }
}

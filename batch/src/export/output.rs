//! Owns: a run's output as files: completions and errors, each as one file, or as shards with a manifest.
//!
//! Invariant: rows are in the order of the input; an errors file exists only if a row failed permanently.
//! Absent: the format of a line (`format`), and whether files are written or compared (`output_sink`).

use std::io::{self, Write};
use std::path::Path;

use rollout_proto::v1;

use super::compare::{Compare, difference};
use super::format::{OutputFormat, Schema, Table};
use super::layout::Layout;
use super::manifest::{FileEntry, Manifest};
use super::names::Names;
use super::output_sink::{Directory, OutputFile, OutputSink};
use super::owner::Claim;
use super::spool::{self, Spool, Spooled};
use super::{Piece, SegmentOutput, Sink, Totals};
use crate::submission::error::BatchError;

pub struct Output<'a> {
    described: &'a v1::DescribeRunResponse,
    spec: &'a v1::RunSpec,
    layout: Layout,
    names: Names,
    sink: Box<dyn OutputSink>,
    completions: Series,
    errors: Series,
    /// Lines of tables, until all rows were seen.
    spool: Option<Spool>,
    /// From then on, the lines that are not in a table yet.
    spooled: Option<Spooled>,
    /// The columns of tables.
    schema: Schema,
    totals: Totals,
}

/// Files of one kind.
struct Series {
    stem: &'static str,
    open: Option<Open>,
    done: Vec<FileEntry>,
}

/// A file that is being written.
struct Open {
    name: String,
    rows: u64,
    body: Body,
}

/// The target of its bytes.
enum Body {
    Lines(Box<Counted>),
    Table(Box<Table<Counted>>),
}

/// A writer that counts and hashes the bytes of a file.
struct Counted {
    bytes: u64,
    hasher: blake3::Hasher,
    file: Box<dyn OutputFile>,
}

impl<'a> Output<'a> {
    /// Files in the claimed directory, which is created, for a run with that spec. A foreign manifest.json is not
    /// overwritten.
    pub fn create(
        claim: &Claim,
        described: &'a v1::DescribeRunResponse,
        spec: &'a v1::RunSpec,
    ) -> Result<Self, BatchError> {
        let directory = Directory::create(claim)?;
        if claim.layout.shard_rows > 0 {
            Manifest::read(&claim.dir)?;
        }
        Self::new(Box::new(directory), claim.layout, (described, spec))
    }

    /// The same files, compared with those in `dir`.
    pub(super) fn compare(
        dir: &Path,
        layout: Layout,
        described: &'a v1::DescribeRunResponse,
        spec: &'a v1::RunSpec,
    ) -> Result<Self, BatchError> {
        let name = described.run.as_ref().map_or("", |run| run.name.as_str());
        Self::new(Box::new(Compare::new(dir, name)), layout, (described, spec))
    }

    fn new(
        sink: Box<dyn OutputSink>,
        layout: Layout,
        (described, spec): (&'a v1::DescribeRunResponse, &'a v1::RunSpec),
    ) -> Result<Self, BatchError> {
        let series = |stem| Series { stem, open: None, done: Vec::new() };
        let spool = match layout.format {
            OutputFormat::Parquet => Some(Spool::new().map_err(spooling)?),
            OutputFormat::Jsonl | OutputFormat::OpenaiBatch => None,
        };
        let mut output = Self {
            described,
            spec,
            layout,
            names: Names::new(layout.format),
            sink,
            completions: series(layout.format.completions()),
            errors: series(layout.format.errors()),
            spool,
            spooled: None,
            schema: Schema::default(),
            totals: Totals::default(),
        };
        if output.spool.is_none() {
            output.begin()?;
        }
        Ok(output)
    }

    /// Starts the only completions file, which exists even if it is empty.
    fn begin(&mut self) -> Result<(), BatchError> {
        match self.layout.shard_rows {
            0 => self.with(|completions, _, to| completions.begin(to)),
            _ => Ok(()),
        }
    }

    /// Applies a function to both series.
    fn with<T>(
        &mut self,
        work: impl FnOnce(&mut Series, &mut Series, &mut To<'_>) -> Result<T, BatchError>,
    ) -> Result<T, BatchError> {
        let run = self.described.run.as_ref().map_or("", |run| run.name.as_str());
        let mut to = To {
            names: &mut self.names,
            sink: &mut *self.sink,
            shard_rows: self.layout.shard_rows,
            format: self.layout.format,
            schema: &self.schema,
            run,
        };
        work(&mut self.completions, &mut self.errors, &mut to)
    }

    fn manifest(&mut self) -> Result<(), BatchError> {
        let mut files = std::mem::take(&mut self.completions.done);
        files.append(&mut self.errors.done);
        let layout = (self.layout.format, self.layout.shard_rows);
        let manifest = Manifest::new((self.described, self.spec), layout, &self.totals, files);
        let path = Path::new(Names::MANIFEST);
        let json = serde_json::to_string_pretty(&manifest);
        let json = json.map_err(|error| BatchError::output(path, error.into()))? + "\n";
        self.with(|_, _, to| {
            let mut file = to.sink.begin(Names::MANIFEST)?;
            let written = file.write_all(json.as_bytes()).and_then(|()| file.end());
            written.map_err(|error| to.failed(Names::MANIFEST, error))
        })
    }
}

/// The target of a series.
struct To<'a> {
    names: &'a mut Names,
    sink: &'a mut dyn OutputSink,
    shard_rows: u64,
    format: OutputFormat,
    schema: &'a Schema,
    run: &'a str,
}

fn spooling(error: io::Error) -> BatchError {
    BatchError::output(&spool::dir(), error)
}

impl To<'_> {
    fn failed(&self, name: &str, error: io::Error) -> BatchError {
        difference(self.run, &error).unwrap_or_else(|| BatchError::output(Path::new(name), error))
    }
}

impl Series {
    fn begin(&mut self, to: &mut To<'_>) -> Result<(), BatchError> {
        let shard = (to.shard_rows > 0).then_some(self.done.len() as u32);
        let name = to.names.take(self.stem, shard);
        let file = to.sink.begin(&name)?;
        let counted = Counted { bytes: 0, hasher: blake3::Hasher::new(), file };
        let body = match to.format {
            OutputFormat::Parquet => {
                let table =
                    Table::new(counted, to.schema).map_err(|error| to.failed(&name, error))?;
                Body::Table(Box::new(table))
            }
            OutputFormat::Jsonl | OutputFormat::OpenaiBatch => Body::Lines(Box::new(counted)),
        };
        self.open = Some(Open { name, rows: 0, body });
        Ok(())
    }

    /// Appends lines.
    fn push(&mut self, mut lines: &str, to: &mut To<'_>) -> Result<(), BatchError> {
        while !lines.is_empty() {
            if self.open.is_none() {
                self.begin(to)?;
            }
            let Some(open) = &mut self.open else { return Ok(()) };
            let room = if to.shard_rows > 0 { to.shard_rows - open.rows } else { u64::MAX };
            let (rows, end) = first_lines(lines, room);
            let (now, later) = lines.split_at(end);
            open.body.push(now).map_err(|error| to.failed(&open.name, error))?;
            open.rows += rows;
            if open.rows == to.shard_rows {
                self.end(to)?;
            }
            lines = later;
        }
        Ok(())
    }

    fn end(&mut self, to: &mut To<'_>) -> Result<(), BatchError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let Open { name, rows, body } = open;
        let ended = body.end().map_err(|error| to.failed(&name, error))?;
        let Counted { bytes, hasher, file } = ended;
        file.end().map_err(|error| to.failed(&name, error))?;
        let blake3 = hasher.finalize().to_hex().to_string();
        self.done.push(FileEntry { name, rows, bytes, blake3 });
        Ok(())
    }
}

impl Body {
    fn push(&mut self, lines: &str) -> io::Result<()> {
        match self {
            Self::Lines(file) => file.write_all(lines.as_bytes()),
            Self::Table(table) => table.push(lines),
        }
    }

    fn end(self) -> io::Result<Counted> {
        match self {
            Self::Lines(file) => Ok(*file),
            Self::Table(table) => table.end(),
        }
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.file.write(bytes)?;
        self.hasher.update(&bytes[..len]);
        self.bytes += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The number of lines, at most `max`, and the end of the last of them.
fn first_lines(lines: &str, max: u64) -> (u64, usize) {
    let ends = lines.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    let taken = ends.take(usize::try_from(max).unwrap_or(usize::MAX));
    taken.fold((0, 0), |(rows, _), (at, _)| (rows + 1, at + 1))
}

impl Sink for Output<'_> {
    fn segment(&mut self, _: &SegmentOutput) -> Result<(), BatchError> {
        Ok(())
    }

    fn rows(&mut self, piece: &Piece) -> Result<(), BatchError> {
        self.totals.add(piece);
        if let Some(spool) = &mut self.spool {
            let pushed = spool.push(0, &piece.completions);
            return pushed.and_then(|()| spool.push(1, &piece.errors)).map_err(spooling);
        }
        self.with(|completions, errors, to| {
            completions.push(&piece.completions, to)?;
            errors.push(&piece.errors, to)
        })
    }

    /// Writes some rows of tables, now that their columns are known.
    fn settle(&mut self) -> Result<bool, BatchError> {
        if let Some(spool) = self.spool.take() {
            let (schema, lines) = spool.end().map_err(spooling)?;
            (self.schema, self.spooled) = (schema, Some(lines));
            self.begin()?;
            return Ok(true);
        }
        let Some(lines) = &mut self.spooled else { return Ok(false) };
        let Some((series, lines)) = lines.next().map_err(spooling)? else { return Ok(false) };
        self.with(|completions, errors, to| {
            let series = if series == 0 { completions } else { errors };
            series.push(&lines, to)
        })?;
        Ok(true)
    }

    fn finish(mut self: Box<Self>) -> Result<(), BatchError> {
        while self.settle()? {}
        self.with(|completions, errors, to| {
            completions.end(to)?;
            errors.end(to)
        })?;
        if self.layout.shard_rows > 0 {
            self.manifest()?;
        }
        self.sink.publish(&self.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_behind_their_ends() {
        assert_eq!(first_lines("a\nbb\nc\n", 2), (2, 5));
        assert_eq!(first_lines("a\nbb\nc\n", u64::MAX), (3, 7));
        assert_eq!(first_lines("", 1), (0, 0));
    }
}

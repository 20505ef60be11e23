//! Owns: one pass over an input on all cores: lines parsed, IDs hashed, segments filled.
//!
//! One thread reads chunks, several parse and hash them, the caller's assembles them in order.
//! Invariant: at most [`CHUNKS_MAX`] chunks and one segment are in memory, besides IDs (64 MiB, then files), the
//! memory of `occurrence`, and the errors that are kept.
//! Absent: anything that outlives the scan; segments go to the sink.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::Mutex;

use super::admission::Admission;
pub use super::assemble::FinishedSegment;
use super::assemble::{Assembler, Parsed, ParsedRow, Stop};
use super::chunk::{Chunk, ChunkReader, LINE_BYTES_MAX};
use super::csv;
use super::duplicates::{self, Duplicates};
use super::files::InputFile;
use super::open::open;
use super::rules::Rules;

const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_BYTES_MIN: usize = 16 << 10;
/// Chunks that were read and not yet assembled.
pub const CHUNKS_MAX: usize = 16;

/// Receives finished segments, in order; may block.
pub type SegmentSink<'a> = dyn FnMut(FinishedSegment) -> Result<(), SinkClosed> + Send + 'a;

/// The sink accepts no more, so the scan ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SinkClosed;

/// How to scan.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// Errors that are kept, and warnings; all are counted.
    pub errors_max: usize,
    /// Ends with the chunk in which this many errors are reached; u64::MAX reads the whole input.
    pub stop_after_errors: u64,
    /// Parsing threads.
    pub threads: usize,
    /// Memory for IDs before they go to files.
    pub ids_budget_bytes: usize,
    /// The directory of those files.
    pub temp_dir: PathBuf,
    /// Whether segments are made after an error too, from the rows without one, for callers that only count rows.
    pub past_errors: bool,
    /// Which rows go into segments; all if none.
    pub admission: Option<Admission>,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self {
            errors_max: 1000,
            stop_after_errors: u64::MAX,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            ids_budget_bytes: duplicates::BUDGET_BYTES,
            temp_dir: std::env::temp_dir(),
            past_errors: false,
            admission: None,
        }
    }
}

/// Progress of a running scan, and a way to stop it.
#[derive(Debug, Default)]
pub struct ScanControl {
    /// Bytes read of the files, before decompression.
    pub bytes: AtomicU64,
    /// Rows that were assembled.
    pub rows: AtomicU64,
    /// Set to end the scan.
    pub stop: AtomicBool,
}

/// An error or warning about one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineError {
    /// Index of the file.
    pub file: u32,
    /// From 1; 0 for the file as a whole.
    pub line: u64,
    /// In characters, from 1; 0 for a row of a table. Parquet has no lines: there the line is the row's number.
    pub column: usize,
    /// Lower case, without a full stop.
    pub message: String,
}

/// The result of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scan {
    pub rows: u64,
    /// Bytes of the rows' JSON.
    pub bytes: u64,
    /// Lines, empty ones included.
    pub lines: u64,
    pub segments: u32,
    /// Rows without an id that equal an earlier one.
    pub repeated: u64,
    /// The first errors, in order.
    pub errors: Vec<LineError>,
    pub error_count: u64,
    /// The first warnings about parameters that an engine may not know, in order, if the rules ask for them.
    pub warnings: Vec<LineError>,
    /// All of them.
    pub warning_count: u64,
    /// The digest of the item IDs in order, if there was an admission.
    pub ids_digest: Option<[u8; 32]>,
}

/// Why a scan did not reach its end.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// A file cannot be read.
    #[error("input {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// A temporary file cannot be written or read.
    #[error("temporary files in {}: {source}", path.display())]
    Temporary {
        /// The directory.
        path: PathBuf,
        source: io::Error,
    },
    /// The caller or the sink stopped the scan.
    #[error("reading the input was stopped")]
    Stopped,
}

/// Reads the whole input. With a sink, segments go to it as long as there was no error.
pub fn scan<'a>(
    files: &[InputFile],
    rules: &Rules,
    options: &ScanOptions,
    control: &ScanControl,
    sink: Option<&'a mut SegmentSink<'a>>,
) -> Result<Scan, ScanError> {
    let duplicates = Duplicates::new(options.ids_budget_bytes, &options.temp_dir);
    let mut assembler = Assembler::new(
        rules.clone(),
        duplicates,
        (options.errors_max, options.past_errors),
        sink,
        options.admission.clone(),
    );
    let (permits, permitted) = sync_channel(CHUNKS_MAX);
    let (chunks, to_parse) = sync_channel::<(u64, Parsed)>(CHUNKS_MAX);
    let (results, parsed) = sync_channel(CHUNKS_MAX);
    let to_parse = Mutex::new(to_parse);
    let stop_after = options.stop_after_errors;
    let outcome = std::thread::scope(|scope| {
        let reader = scope.spawn(move || read(files, rules, control, &permits, &chunks));
        for _ in 0..options.threads.max(1) {
            let (to_parse, results, rules) = (&to_parse, results.clone(), rules.clone());
            scope.spawn(move || parse(to_parse, &results, rules));
        }
        drop(results);
        let put = put_together(&mut assembler, parsed, permitted, control, stop_after);
        // Its channels are closed by now, so the reader ends, whether or not it has read everything.
        let read = reader.join().unwrap_or(Err(ScanError::Stopped));
        put.map_err(|stop| temporary(stop, options)).and(read)
    });
    outcome?;
    let describe = |file: u32, line: u64| {
        let path = files.get(file as usize).map(|file| file.path.display().to_string());
        format!("{}:{line}", path.unwrap_or_default())
    };
    assembler.finish(describe).map_err(|stop| temporary(stop, options))
}

/// If rows grow, chunks are smaller, so that their output is bounded too.
fn chunk_bytes(rules: &Rules) -> usize {
    (CHUNK_BYTES / (1 + rules.growth().unwrap_or(0) / 256)).max(CHUNK_BYTES_MIN)
}

fn temporary(stop: Stop, options: &ScanOptions) -> ScanError {
    match stop {
        Stop::Sink | Stop::Enough => ScanError::Stopped,
        Stop::Io(source) => ScanError::Temporary { path: options.temp_dir.clone(), source },
    }
}

fn read(
    files: &[InputFile],
    rules: &Rules,
    control: &ScanControl,
    permits: &SyncSender<()>,
    chunks: &SyncSender<(u64, Parsed)>,
) -> Result<(), ScanError> {
    let mut number = 0;
    for (file, input) in (0u32..).zip(files) {
        let failed = |source| ScanError::Io { path: input.path.clone(), source };
        let opened = open(input, &control.bytes).map_err(failed)?;
        let whole = opened.columns.and_then(|columns| rules.lacks(&columns));
        if whole.is_some() {
            // All of its rows lack the same column.
            let parsed = Parsed { file, first: true, whole, ..Parsed::default() };
            if permits.send(()).is_err() || chunks.send((number, parsed)).is_err() {
                return Ok(());
            }
            number += 1;
            continue;
        }
        let mut reader = ChunkReader::new(opened.text, chunk_bytes(rules), LINE_BYTES_MAX);
        let mut first = true;
        while let Some(chunk) = reader.next().map_err(failed)? {
            if control.stop.load(Ordering::Relaxed) {
                return Err(ScanError::Stopped);
            }
            let tabular = opened.tabular;
            let mut parsed = Parsed { file, first, tabular, ..Parsed::default() };
            match chunk {
                Chunk::Lines(bytes) => parsed.bytes = bytes,
                Chunk::TooLong => {
                    let message = format!("the line is longer than {LINE_BYTES_MAX} bytes");
                    parsed.errors.note(0, LINE_BYTES_MAX + 1, message);
                    parsed.lines = 1;
                }
            }
            if permits.send(()).is_err() || chunks.send((number, parsed)).is_err() {
                // The side that closed the channel reports why.
                return Ok(());
            }
            number += 1;
            first = false;
        }
    }
    Ok(())
}

fn parse(
    to_parse: &Mutex<Receiver<(u64, Parsed)>>,
    results: &SyncSender<(u64, Parsed)>,
    mut rules: Rules,
) {
    loop {
        let next = to_parse.lock().recv();
        let Ok((number, mut parsed)) = next else { return };
        parse_chunk(&mut parsed, &mut rules);
        if results.send((number, parsed)).is_err() {
            return;
        }
    }
}

fn put_together(
    assembler: &mut Assembler<'_>,
    parsed: Receiver<(u64, Parsed)>,
    permitted: Receiver<()>,
    control: &ScanControl,
    stop_after_errors: u64,
) -> Result<(), Stop> {
    let mut early = BTreeMap::new();
    let mut next = 0;
    for (number, chunk) in parsed {
        early.insert(number, chunk);
        while let Some(chunk) = early.remove(&next) {
            next += 1;
            // The permit was issued before the chunk.
            let _ = permitted.try_recv();
            match assembler.take(&chunk) {
                Err(Stop::Enough) => return Ok(()),
                taken => taken?,
            }
            control.rows.store(assembler.scan.rows, Ordering::Relaxed);
            if assembler.scan.error_count >= stop_after_errors {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Finds and parses the lines of a chunk.
pub(super) fn parse_chunk(parsed: &mut Parsed, rules: &mut Rules) {
    let bytes = std::mem::take(&mut parsed.bytes);
    let mut at = 0;
    match std::str::from_utf8(&bytes) {
        Ok(text) => {
            while at < text.len() {
                let end = text[at..].find('\n').map_or(text.len(), |len| at + len);
                parse_line(parsed, rules, &text[at..end], at);
                at = end + 1;
            }
        }
        Err(_) => {
            for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                let line = line.strip_suffix(b"\n").unwrap_or(line);
                match std::str::from_utf8(line) {
                    Ok(text) => parse_line(parsed, rules, text, at),
                    Err(error) => {
                        let valid = &line[..error.valid_up_to()];
                        let column = String::from_utf8_lossy(valid).chars().count() + 1;
                        let message = "the line is not UTF-8".to_owned();
                        parsed.errors.note(parsed.lines, column, message);
                        parsed.lines += 1;
                    }
                }
                at += line.len() + 1;
            }
        }
    }
    // If rows were rewritten, their positions refer to the rewritten bytes.
    parsed.bytes = match rules.growth() {
        Some(_) => std::mem::take(&mut parsed.rewritten),
        None => bytes,
    };
}

fn parse_line(parsed: &mut Parsed, rules: &mut Rules, text: &str, at: usize) {
    let line = parsed.lines;
    parsed.lines += 1;
    let body = text.trim_ascii();
    if body.is_empty() {
        return;
    }
    if parsed.tabular
        && let Some(message) = body.strip_prefix(csv::NO_ROW)
    {
        parsed.errors.note(line, 0, message.to_owned());
        return;
    }
    let indent = text.len() - text.trim_ascii_start().len();
    match rules.read(body) {
        Ok(row) => {
            parsed.present |= row.present;
            if parsed.rows.is_empty() {
                parsed.columns = rules.columns(body);
            }
            if let Some(unknown) = &row.unknown {
                parsed.warnings.note(line, indent + unknown.column, unknown.message.clone());
            }
            let item_id = rules.item_id(&row, 0);
            let own_id = row.id_json.as_deref().map(Duplicates::hash);
            let (start, end) = match &row.rewritten {
                Some(written) => {
                    let start = parsed.rewritten.len();
                    parsed.rewritten.extend_from_slice(written.as_bytes());
                    (start, parsed.rewritten.len())
                }
                None => (at + indent, at + indent + body.len()),
            };
            parsed.rows.push(ParsedRow { start, end, line, item_id, own_id });
        }
        Err(error) => parsed.errors.note(line, indent + error.column, error.message),
    }
}

#[cfg(test)]
mod tests;

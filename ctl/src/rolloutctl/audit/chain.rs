//! The hash chain of audit files: `prev` of a line is the BLAKE3 hash of the whole line before it, without its line
//! feed.
//!
//! Invariant: every break is reported with file and line. A line that is not JSON was written only in part; members
//! append the next one after the last whole line, so it is counted and skipped. Absent: a proof that the
//! newest lines are there.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The lines that a member writes are much shorter.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How many breaks are named; more would not help.
const BREAKS_MAX: usize = 100;

/// One file whose lines were read.
#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) path: PathBuf,
    /// Lines of the chain.
    pub(super) lines: u64,
    /// Lines without `prev`, from before members wrote it.
    pub(super) unchained: u64,
    /// Lines that were only partly written.
    pub(super) torn: u64,
    /// The number of the first line, its time, and the line that it names.
    first: Option<(u64, String, Option<String>)>,
    /// The hash of the last line.
    pub(super) last: Option<String>,
    pub(super) breaks: Vec<String>,
}

impl Checked {
    /// Reads all lines of a file.
    ///
    /// # Errors
    /// The file cannot be read; the error names it.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let mut checked = Self { path: path.to_owned(), ..Self::default() };
        let failed = |error| anyhow::anyhow!("cannot read {}: {error}", path.display());
        let mut reader = BufReader::new(File::open(path).map_err(failed)?);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
            if read.map_err(failed)? == 0 {
                break;
            }
            checked.take(number, line.strip_suffix(b"\n").unwrap_or(&line));
        }
        Ok(checked)
    }

    /// The same for bytes, for fuzz targets.
    #[cfg(feature = "fuzzing")]
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut checked = Self::default();
        for (number, line) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            checked.take(number, line);
        }
        checked
    }

    fn take(&mut self, number: u64, line: &[u8]) {
        let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(line) else {
            self.torn += 1;
            return;
        };
        let hash = blake3::hash(line).to_hex().to_string();
        let before = self.last.replace(hash);
        let Some(prev) = fields.get("prev") else {
            if self.lines > 0 {
                self.breaks(number, "it has no `prev`, and lines before it have one");
            }
            self.unchained += 1;
            return;
        };
        let prev = prev.as_str().map(str::to_owned);
        match &before {
            Some(before) if prev.as_ref() != Some(before) => {
                let named = prev.as_deref().unwrap_or("no line");
                let why = format!(
                    "`prev` is {named}, and the hash of the line before it is {before}: one of the two lines was changed, \
                     or lines between them were removed or inserted"
                );
                self.breaks(number, &why);
            }
            _ => {}
        }
        if before.is_none() {
            let time = fields.get("time").and_then(Value::as_str).unwrap_or_default();
            self.first = Some((number, time.to_owned(), prev));
        }
        self.lines += 1;
    }

    fn breaks(&mut self, number: u64, why: &str) {
        if self.breaks.len() < BREAKS_MAX {
            self.breaks.push(format!("{}:{number}: {why}", self.path.display()));
        }
    }

    /// The line that the first one names.
    pub(super) fn follows(&self) -> Option<&str> {
        self.first.as_ref().and_then(|(_, _, prev)| prev.as_deref())
    }

    fn is_behind(&self, other: &Self) -> bool {
        self.follows().is_some() && self.follows() == other.last.as_deref()
    }
}

/// The files in the order of the chain, whatever the order of the arguments. A file that follows none of the others
/// begins the chain; a second such file is a break.
pub(super) fn in_order(mut files: Vec<Checked>) -> Vec<Checked> {
    files.sort_by_key(|file| {
        // Lines from before the chain are older than all others.
        file.first.as_ref().map(|(_, time, _)| time.clone()).unwrap_or_default()
    });
    let mut ordered: Vec<Checked> = Vec::new();
    while !files.is_empty() {
        let next = match ordered.last().filter(|last| last.last.is_some()) {
            Some(last) => files.iter().position(|file| file.is_behind(last)),
            None => None,
        };
        let begins = |file: &Checked| !files.iter().any(|other| file.is_behind(other));
        let at = next.or_else(|| files.iter().position(begins)).unwrap_or(0);
        let mut file = files.remove(at);
        let has_chain = ordered.iter().any(|before| before.lines > 0);
        if next.is_none() && has_chain {
            let number = file.first.as_ref().map_or(1, |(number, _, _)| *number);
            let why = match file.follows() {
                Some(named) => format!(
                    "`prev` is {named}, and no file that was named ends with that line: a file is missing, its last lines \
                     were removed or changed, or this line was changed"
                ),
                None => "it names no line before it, and there are older lines".to_owned(),
            };
            if file.lines + file.unchained > 0 {
                file.breaks(number, &why);
            }
        }
        ordered.push(file);
    }
    ordered
}

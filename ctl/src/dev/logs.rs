//! `rollout dev logs`: the logs of a development cluster's processes.
//!
//! Invariant: memory is bounded by [`TAIL_BYTES`] per file. A replaced log, as at a new start, is read from its
//! beginning.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::args::LogsArgs;
use super::layout::Layout;
use crate::output::{reader_is_gone, write_stdout};

/// How much of the end of a file is read.
const TAIL_BYTES: u64 = 4 << 20;
const PAUSE: Duration = Duration::from_millis(200);

/// Prints the end of one log, or of each; with `--follow` continues with appended lines.
///
/// # Errors
/// The cluster or process does not exist, or a log cannot be read.
pub(super) async fn run(dir: &Path, args: &LogsArgs) -> anyhow::Result<()> {
    let layout = Layout::existing(dir)
        .with_context(|| format!("there is no cluster in {}", dir.display()))?;
    let mut logs = logs(&layout, args.process.as_deref())?;
    let with_names = logs.len() > 1;
    let mut last = None;
    loop {
        for (at, log) in logs.iter_mut().enumerate() {
            let first = log.next == 0;
            let text = log.news(if first { args.lines } else { usize::MAX })?;
            if text.is_empty() {
                continue;
            }
            if with_names && last != Some(at) {
                let space = if last.is_some() { "\n" } else { "" };
                write_stdout(&format!("{space}==> {} <==\n", log.name))?;
            }
            last = Some(at);
            write_stdout(&text)?;
        }
        if !args.follow || reader_is_gone() {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A log, and the position up to which it was printed.
struct Log {
    name: String,
    path: PathBuf,
    next: u64,
}

impl Log {
    /// The new complete lines, at most `lines_max`.
    fn news(&mut self, lines_max: usize) -> anyhow::Result<String> {
        let unread = || format!("cannot read {}", self.path.display());
        let mut file = File::open(&self.path).with_context(unread)?;
        let len = file.metadata().with_context(unread)?.len();
        if len < self.next {
            self.next = 0;
        }
        let from = self.next.max(len.saturating_sub(TAIL_BYTES));
        file.seek(SeekFrom::Start(from)).with_context(unread)?;
        let mut bytes = Vec::new();
        file.take(len - from).read_to_end(&mut bytes).with_context(unread)?;
        // An incomplete line is read again next time.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.next = from + whole as u64;
        let text = String::from_utf8_lossy(&bytes[..whole]);
        let lines: Vec<&str> = text.lines().collect();
        let shown = &lines[lines.len().saturating_sub(lines_max)..];
        Ok(shown.iter().fold(String::new(), |text, line| text + line + "\n"))
    }
}

/// The log of the given process, or those of all.
fn logs(layout: &Layout, process: Option<&str>) -> anyhow::Result<Vec<Log>> {
    let dir = layout.logs();
    let unread = || format!("there is no cluster in {}", layout.root().display());
    let mut names: Vec<String> = std::fs::read_dir(&dir)
        .with_context(unread)?
        .filter_map(|entry| {
            Some(entry.ok()?.file_name().to_str()?.strip_suffix(".log")?.to_owned())
        })
        .collect();
    names.sort_unstable();
    if let Some(process) = process {
        if !names.iter().any(|name| name == process) {
            bail!("there is no log of {process}; known are {}", names.join(", "));
        }
        names.retain(|name| name == process);
    }
    Ok(names.into_iter().map(|name| Log { path: layout.log(&name), name, next: 0 }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_come_first_and_then_what_is_appended() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open(dir.path()).unwrap();
        let write = |text: &str| std::fs::write(layout.log("c1"), text).unwrap();
        write("a\nb\nc\nunfin");
        std::fs::write(layout.log("w1"), "").unwrap();
        assert_eq!(logs(&layout, None).unwrap().len(), 2);
        let mut log = logs(&layout, Some("c1")).unwrap().remove(0);
        assert_eq!(log.news(2).unwrap(), "b\nc\n");
        assert_eq!(log.news(9).unwrap(), "");
        write("a\nb\nc\nunfinished\n");
        assert_eq!(log.news(9).unwrap(), "unfinished\n");
        write("anew\n");
        assert_eq!(log.news(9).unwrap(), "anew\n");
        let error = logs(&layout, Some("c9")).err().unwrap().to_string();
        assert!(error.contains("known are c1, w1"), "{error}");
    }
}

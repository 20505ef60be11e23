//! Owns: the output of an engine's process: it goes to the agent's log, line by line, and its tail is kept.
//!
//! Invariant: the process never waits for the log: every byte is read at once. A long line is cut, and only the first
//! lines of each second are logged; the tail is the last bytes of all output.
//! Absent: any decision based on the output.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::engine::LAST_WORDS_BYTES_MAX;

/// Bytes of a line that are logged.
const LINE_BYTES_MAX: usize = 2048;
/// Lines per second that are logged.
const LINES_MAX: u32 = 100;
/// How long a dead process's pipe may stay open because a process that left its group still holds it.
const END_TIMEOUT: Duration = Duration::from_millis(500);

/// The tail of a process's output.
pub(super) struct LastWords {
    kept: Arc<Mutex<StderrTail>>,
    /// Closed when the pipe has been read to its end.
    ended: oneshot::Receiver<()>,
}

impl LastWords {
    /// The process's last output, after its end: whole lines, if there are any.
    pub(super) async fn text(&mut self) -> String {
        // Do not wait for a process that keeps the pipe open.
        let _ = timeout(END_TIMEOUT, &mut self.ended).await;
        self.kept.lock().text()
    }
}

/// Follows a pipe until its last writer is gone.
pub(super) fn follow(mut pipe: io::PipeReader, slot: u32) -> io::Result<LastWords> {
    let name = format!("engine-log-{slot}");
    let (end, ended) = oneshot::channel();
    let kept = Arc::new(Mutex::new(StderrTail::default()));
    let words = LastWords { kept: kept.clone(), ended };
    std::thread::Builder::new().name(name).spawn(move || {
        let mut lines = Lines::new();
        let mut buffer = [0; 8192];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => {
                    kept.lock().take(&buffer[..read]);
                    lines.take(&buffer[..read], |line| {
                        tracing::info!(slot, "engine: {line}");
                    });
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        drop(end);
    })?;
    Ok(words)
}

/// The last bytes.
#[derive(Default)]
struct StderrTail {
    bytes: VecDeque<u8>,
    /// Whether earlier bytes were dropped.
    cut: bool,
}

impl StderrTail {
    fn take(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(LAST_WORDS_BYTES_MAX);
        self.bytes.drain(..over);
        self.cut |= over > 0;
    }

    fn text(&mut self) -> String {
        let mut bytes: &[u8] = self.bytes.make_contiguous();
        if self.cut
            && let Some(end) = bytes.iter().position(|byte| *byte == b'\n')
            && end + 1 < bytes.len()
        {
            bytes = &bytes[end + 1..];
        }
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim();
        // An invalid byte becomes three.
        let start = text.ceil_char_boundary(text.len().saturating_sub(LAST_WORDS_BYTES_MAX));
        text[start..].to_owned()
    }
}

struct Lines {
    line: Vec<u8>,
    second: Instant,
    logged: u32,
}

impl Lines {
    fn new() -> Self {
        Self { line: Vec::new(), second: Instant::now(), logged: 0 }
    }

    fn take(&mut self, bytes: &[u8], mut log: impl FnMut(&str)) {
        for byte in bytes {
            match byte {
                b'\n' => self.end(&mut log),
                byte if self.line.len() < LINE_BYTES_MAX => self.line.push(*byte),
                _ => {}
            }
        }
    }

    fn end(&mut self, log: &mut impl FnMut(&str)) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.logged) = (Instant::now(), 0);
        }
        self.logged += 1;
        if self.logged <= LINES_MAX {
            log(String::from_utf8_lossy(&self.line).trim_end());
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_and_floods_dropped() {
        let (mut lines, mut logged) = (Lines::new(), Vec::new());
        lines.take(b"one\ntw", |line| logged.push(line.to_owned()));
        lines.take(&[b'o'; 9000], |line| logged.push(line.to_owned()));
        for _ in 0..1000 {
            lines.take(b"\n", |line| logged.push(line.to_owned()));
        }
        assert_eq!(logged[0], "one");
        assert_eq!(logged[1].len(), LINE_BYTES_MAX);
        assert!(logged.len() <= 2 * LINES_MAX as usize, "{}", logged.len());
    }

    #[test]
    fn the_last_lines_are_kept_whole_and_within_bounds() {
        let mut kept = StderrTail::default();
        kept.take(b"first\n");
        kept.take(b"last\n\n");
        assert_eq!(kept.text(), "first\nlast");
        for number in 0..4000 {
            kept.take(format!("line {number}\n").as_bytes());
        }
        let text = kept.text();
        assert!(text.len() <= LAST_WORDS_BYTES_MAX && text.len() > LAST_WORDS_BYTES_MAX / 2);
        assert!(text.starts_with("line ") && text.ends_with("\nline 3999"), "{text}");
        kept.take(&[0xff; 2 * LAST_WORDS_BYTES_MAX]);
        assert!(kept.text().len() <= LAST_WORDS_BYTES_MAX, "{}", kept.text().len());
    }

    #[tokio::test]
    async fn the_output_of_a_process_is_available_when_it_has_ended() {
        let (log, mut to_log) = io::pipe().unwrap();
        let mut words = follow(log, 0).unwrap();
        std::io::Write::write_all(&mut to_log, b"device lost\n").unwrap();
        drop(to_log);
        assert_eq!(words.text().await, "device lost");
    }
}

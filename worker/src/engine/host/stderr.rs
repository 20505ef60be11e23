//! Owns: what an engine's process prints: it goes to the agent's log, line by line.
//!
//! Invariant: the process never waits for the log: every byte is read at once. A long line is cut, and of many in
//! one second only the first are kept.
//! Absent: any decision by what is printed.

use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Bytes of a line that are kept.
const LINE_BYTES_MAX: usize = 2048;
/// Lines of a second that are kept.
const LINES_MAX: u32 = 100;

/// Follows a pipe until its last writer is gone.
pub(super) fn follow(mut pipe: io::PipeReader, slot: u32) -> io::Result<()> {
    let name = format!("engine-log-{slot}");
    std::thread::Builder::new().name(name).spawn(move || {
        let mut lines = Lines::new();
        let mut buffer = [0; 8192];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => lines.take(&buffer[..read], |line| {
                    tracing::info!(slot, "engine: {line}");
                }),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
    })?;
    Ok(())
}

struct Lines {
    line: Vec<u8>,
    second: Instant,
    kept: u32,
}

impl Lines {
    fn new() -> Self {
        Self { line: Vec::new(), second: Instant::now(), kept: 0 }
    }

    fn take(&mut self, bytes: &[u8], mut keep: impl FnMut(&str)) {
        for byte in bytes {
            match byte {
                b'\n' => self.end(&mut keep),
                byte if self.line.len() < LINE_BYTES_MAX => self.line.push(*byte),
                _ => {}
            }
        }
    }

    fn end(&mut self, keep: &mut impl FnMut(&str)) {
        if self.second.elapsed() >= Duration::from_secs(1) {
            (self.second, self.kept) = (Instant::now(), 0);
        }
        self.kept += 1;
        if self.kept <= LINES_MAX {
            keep(String::from_utf8_lossy(&self.line).trim_end());
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_and_floods_dropped() {
        let (mut lines, mut kept) = (Lines::new(), Vec::new());
        lines.take(b"one\ntw", |line| kept.push(line.to_owned()));
        lines.take(&[b'o'; 9000], |line| kept.push(line.to_owned()));
        for _ in 0..1000 {
            lines.take(b"\n", |line| kept.push(line.to_owned()));
        }
        assert_eq!(kept[0], "one");
        assert_eq!(kept[1].len(), LINE_BYTES_MAX);
        assert!(kept.len() <= 2 * LINES_MAX as usize, "{}", kept.len());
    }
}

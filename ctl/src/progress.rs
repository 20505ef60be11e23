//! Owns: what a user sees on stderr while a command works: a bar on a terminal, a line every five seconds elsewhere.
//!
//! Invariant: stdout is left to results, and notes never break the bar.
//! Absent: deciding what is worth a note.

mod rate;

use std::time::{Duration, Instant};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;
use rollout_proto::v1;

use self::rate::Rate;
use crate::output::counted;
use crate::stdio::to_stderr;

/// The pause between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// A progress display, made once per command and shared by reference.
#[derive(Debug)]
pub struct Progress {
    /// None if stderr is not a terminal.
    bar: Option<ProgressBar>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last_line: Option<Instant>,
    last_note: String,
    rows: Rate,
    tokens: Rate,
}

impl Progress {
    /// A display on stderr; nothing is drawn yet. With `quiet` it shows only notes.
    pub fn new(quiet: bool) -> Self {
        let bar = (!quiet && console_is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(8));
            bar.set_style(style());
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        let mut state = State::default();
        if quiet {
            // So far in the future that no line becomes due.
            state.last_line = Instant::now().checked_add(Duration::from_secs(1 << 30));
        }
        Self { bar, state: Mutex::new(state) }
    }

    /// Prints a line above the bar; consecutive duplicates are printed once.
    pub fn note(&self, text: &str) {
        {
            let mut state = self.state.lock();
            if state.last_note == text {
                return;
            }
            text.clone_into(&mut state.last_note);
        }
        self.print(text);
    }

    /// Bytes of the input read so far, before anything is submitted.
    pub fn reading(&self, bytes: u64, bytes_total: u64, rows: u64) {
        let text = format!(
            "reading the input: {} / {}, {}",
            indicatif::HumanBytes(bytes),
            indicatif::HumanBytes(bytes_total),
            counted(rows, "row")
        );
        self.show(bytes, bytes_total, &text);
    }

    /// Bytes of a file read so far.
    pub fn reading_file(&self, bytes: u64, bytes_total: u64) {
        self.bytes("checking", bytes, bytes_total);
    }

    /// Bytes received, of an approximate total.
    pub fn receiving(&self, bytes: u64, bytes_about: u64) {
        self.bytes("receiving", bytes, bytes_about);
    }

    fn bytes(&self, what: &str, bytes: u64, total: u64) {
        let (now, all) = (indicatif::HumanBytes(bytes), indicatif::HumanBytes(total));
        self.show(bytes, total, &format!("{what}: {now} / {all}"));
    }

    /// The progress of a run.
    pub fn run(&self, run: &v1::RunSummary) {
        let counts = run.counts.unwrap_or_default();
        let decided = counts.done + counts.failed;
        let text = {
            let mut state = self.state.lock();
            let now = Instant::now();
            state.rows.push(now, decided);
            state.tokens.push(now, counts.tokens_out);
            let left = counts.rows.saturating_sub(decided);
            line(&counts, state.rows.per_second(), state.tokens.per_second(), left)
        };
        self.show(decided, counts.rows, &text);
    }

    /// For a reader of a run's results: shows the rows that it has read.
    pub fn on_rows(&self) -> impl Fn(u64, u64) + Send + Sync + '_ {
        |rows, rows_total| self.writing(rows, rows_total)
    }

    /// Rows written to the output.
    fn writing(&self, rows: u64, rows_total: u64) {
        let text = format!("writing: {} / {}", HumanCount(rows), counted(rows_total, "row"));
        self.show(rows, rows_total, &text);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn show(&self, position: u64, length: u64, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(length.max(1));
            bar.set_position(position);
            bar.set_message(text.to_owned());
            return;
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        if state
            .last_line
            .is_none_or(|last| now.saturating_duration_since(last) >= LINE_EVERY && last <= now)
        {
            state.last_line = Some(now);
            drop(state);
            self.print(text);
        }
    }

    fn print(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| to_stderr(&format!("{text}\n"))),
            None => to_stderr(&format!("{text}\n")),
        }
    }
}

fn console_is_terminal() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stderr())
}

fn style() -> ProgressStyle {
    // invariant: the template is a constant that parses.
    ProgressStyle::with_template("{bar:24} {percent:>3}%  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}

fn line(counts: &v1::RunCounts, rows_rate: f64, tokens_rate: f64, left: u64) -> String {
    let mut text = format!(
        "{} / {}  {} rows/s  {} tokens/s",
        HumanCount(counts.done + counts.failed),
        counted(counts.rows, "row"),
        HumanCount(rows_rate as u64),
        HumanCount(tokens_rate as u64),
    );
    if left > 0 && rows_rate > 0.0 {
        let eta = Duration::from_secs_f64((left as f64 / rows_rate).clamp(1.0, 1e9));
        text += &format!("  eta {}", HumanDuration(eta));
    }
    text +=
        &format!("  retries {}  failed {}", HumanCount(counts.retries), HumanCount(counts.failed));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_rows_rates_eta_retries_and_failures() {
        let counts = v1::RunCounts {
            rows: 20_000,
            done: 5_000,
            failed: 7,
            retries: 31,
            ..Default::default()
        };
        let text = line(&counts, 100.0, 12_345.6, 14_993);
        assert_eq!(
            text,
            "5,007 / 20,000 rows  100 rows/s  12,345 tokens/s  eta 2 minutes  retries 31  failed 7"
        );
        assert!(!line(&counts, 0.0, 0.0, 14_993).contains("eta"));
    }
}

//! Owns: the speed of the run whose output is in the output directory, to estimate the next run's time.
//!
//! Invariant: it reads a bounded part of that output and nothing else; if that says too little, there is no estimate.
//! Absent: the cluster's load, now or then.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

/// Bytes of the output that are read.
const BYTES_MAX: u64 = 64 << 20;

/// What a run accomplished.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Speed {
    rows: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    seconds: u64,
}

#[derive(Deserialize)]
struct Line<'a> {
    generated_at: Option<&'a str>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

impl Speed {
    /// The speed of the run whose completions are in this file; `None` if its duration is unknown.
    pub fn of(completions: &Path) -> Option<Self> {
        let file = std::fs::File::open(completions).ok()?;
        Self::read(BufReader::new(file.take(BYTES_MAX)))
    }

    /// The speed of a run that completed `rows`, with these tokens of prompts and of completions, in this many seconds.
    pub fn of_run(rows: u64, (prompt, completion): (u64, u64), seconds: u64) -> Option<Self> {
        let speed = Self { rows, prompt_tokens: prompt, completion_tokens: completion, seconds };
        (rows > 0 && seconds > 0).then_some(speed)
    }

    fn read(from: impl BufRead) -> Option<Self> {
        let mut speed = Self::default();
        let mut span: Option<(i64, i64)> = None;
        for line in from.lines() {
            let line = line.ok()?;
            // The last line may be truncated.
            let Ok(line) = serde_json::from_str::<Line<'_>>(&line) else { break };
            let Some(at) = line.generated_at.and_then(seconds) else { continue };
            span = Some(span.map_or((at, at), |(first, last)| (first.min(at), last.max(at))));
            speed.rows += 1;
            let add = |sum: u64, more: Option<u64>| sum.saturating_add(more.unwrap_or(0));
            speed.prompt_tokens = add(speed.prompt_tokens, line.prompt_tokens);
            speed.completion_tokens = add(speed.completion_tokens, line.completion_tokens);
        }
        let (first, last) = span?;
        speed.seconds = u64::try_from(last - first).ok().filter(|seconds| *seconds > 0)?;
        Some(speed)
    }

    /// The time for this many rows and prompt tokens at that speed, if their completions are as long.
    pub fn estimate(&self, rows: u64, prompt_tokens: u64) -> Duration {
        let each = self.completion_tokens as f64 / self.rows.max(1) as f64;
        let (did, all) = (
            self.prompt_tokens as f64 + self.completion_tokens as f64,
            prompt_tokens as f64 + rows as f64 * each,
        );
        let share = if did > 0.0 { all / did } else { rows as f64 / self.rows.max(1) as f64 };
        Duration::try_from_secs_f64(self.seconds as f64 * share).unwrap_or(Duration::MAX)
    }
}

fn seconds(text: &str) -> Option<i64> {
    let format = &time::format_description::well_known::Rfc3339;
    time::OffsetDateTime::parse(text, format).ok().map(time::OffsetDateTime::unix_timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(at: &str, prompt: u64, completion: u64) -> String {
        format!(
            r#"{{"id":1,"generated_at":"{at}","prompt_tokens":{prompt},"completion_tokens":{completion}}}"#
        )
    }

    #[test]
    fn the_next_run_takes_as_long_for_as_many_tokens() {
        let lines = [
            line("2026-01-01T00:00:10Z", 10, 30),
            line("2026-01-01T00:00:00Z", 10, 30),
            line("2026-01-01T00:00:20Z", 10, 30),
        ];
        let speed = Speed::read((lines.join("\n") + "\n{\"cut").as_bytes()).unwrap();
        assert_eq!(speed.estimate(3, 30), Duration::from_secs(20));
        assert_eq!(speed.estimate(6, 60), Duration::from_secs(40));
        assert_eq!(speed.estimate(3, 150), Duration::from_secs(40));
    }

    #[test]
    fn more_tokens_than_a_number_counts_give_an_estimate_too() {
        let lines = [
            line("2026-01-01T00:00:00Z", u64::MAX, u64::MAX),
            line("2026-01-01T00:00:20Z", u64::MAX, 1),
        ];
        let speed = Speed::read(lines.join("\n").as_bytes()).unwrap();
        assert_eq!(speed.estimate(2, u64::MAX), Duration::from_secs(20));
    }

    #[test]
    fn an_output_that_says_too_little_gives_no_estimate() {
        assert_eq!(Speed::read("".as_bytes()), None);
        assert_eq!(Speed::read(line("2026-01-01T00:00:10Z", 1, 1).as_bytes()), None);
        assert_eq!(Speed::read("{\"id\":1}\n".as_bytes()), None);
        assert_eq!(Speed::of(Path::new("/nowhere")), None);
    }
}

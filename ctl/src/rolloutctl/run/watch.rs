//! `rolloutctl run watch NAME`: progress until the run ends.
//!
//! Invariant: a change of leader is a pause, not an error: the stream is opened again at the new one. On a terminal
//! the line is redrawn; elsewhere each change is a line, or a document in JSON.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use rollout_proto::{CallOptions, Client, ClientError, RpcError, services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::output::{self, Format, Report, count, duration, write_stdout};
use crate::rolloutctl::Failure;
use crate::rolloutctl::run_summary::Run;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// What to watch, and how often.
#[derive(Debug, clap::Args)]
pub(crate) struct WatchArgs {
    /// The run's name; one at a time, because the exit status tells how that run ended
    #[arg(add = completer::of(Names::Runs))]
    name: String,
    /// Minimum time between two lines
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::connect::parse_duration)]
    interval: Duration,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Progress<'a>(&'a Run);

impl Report for Progress<'_> {
    const KIND: &'static str = "RunSummary";

    fn table(&self) -> String {
        line(self.0, None)
    }
}

/// The rate of rows with an outcome, over the last few answers.
#[derive(Default)]
struct Rate {
    last: Option<(Instant, u64)>,
    per_second: Option<f64>,
}

impl Rate {
    fn observe(&mut self, now: Instant, decided: u64) -> Option<f64> {
        if let Some((then, before)) = self.last {
            let seconds = now.duration_since(then).as_secs_f64();
            if seconds >= 0.05 {
                let rate = decided.saturating_sub(before) as f64 / seconds;
                let smooth = self.per_second.map_or(rate, |old| old * 0.7 + rate * 0.3);
                self.per_second = Some(smooth);
                self.last = Some((now, decided));
            }
        } else {
            self.last = Some((now, decided));
        }
        self.per_second
    }
}

fn line(run: &Run, per_second: Option<f64>) -> String {
    let counts = &run.counts;
    let mut text = format!(
        "{}  {}  {}% decided  {} / {}  running {}  retrying {}  failed {}",
        run.name,
        run.state,
        counts.percent(),
        count(counts.decided()),
        count(counts.rows),
        count(counts.running),
        count(counts.waiting),
        count(counts.failed),
    );
    if let Some(rate) = per_second.filter(|rate| *rate > 0.0 && !run.ended()) {
        let left = counts.rows.saturating_sub(counts.decided()) as f64 / rate;
        text.push_str(&format!("  {} rows/s  eta {}", count(rate as u64), duration(left)));
    }
    let why = run.why();
    if !why.is_empty() {
        text.push_str(&format!("  ({why})"));
    }
    text
}

impl Verb for WatchArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Follows a run. Exit status 1 if it was cancelled.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let request = v1::WatchRunRequest {
            namespace: settings.namespace.clone(),
            name: self.name,
            interval_ms: self.interval.as_millis().clamp(50, 60_000) as u32,
        };
        let mut screen = Screen::new(globals.format);
        loop {
            match follow(&client, &request, &mut screen).await {
                Ok(Some(run)) => {
                    screen.end()?;
                    return match run.state {
                        "cancelled" => {
                            Err(Failure::failed(format!("run {} was cancelled", run.name)).into())
                        }
                        "deadline exceeded" => {
                            let text =
                                format!("RO-2016: run {} was ended by its deadline", run.name);
                            Err(Failure::conflict(text).into())
                        }
                        _ => Ok(()),
                    };
                }
                // The leader ended the stream, or lost its place: the next call finds the new one.
                Ok(None) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Follows one stream: returns the run when it ended, `None` when the stream broke and another one should be tried.
async fn follow(
    client: &Client,
    request: &v1::WatchRunRequest,
    screen: &mut Screen,
) -> Result<Option<Run>, ClientError> {
    let mut stream = client
        .with_leader_opts("watch run", CallOptions::read(), |channel| {
            let request = request.clone();
            async move { services::runs(channel).watch_run(request).await }
        })
        .await?;
    loop {
        let answer = match stream.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(None),
            Err(status) => {
                let error = RpcError::from_status(&status);
                return if error.retryable { Ok(None) } else { Err(error.into()) };
            }
        };
        let run = Run::from(answer.run.unwrap_or_default());
        screen.show(&run);
        if run.ended() {
            return Ok(Some(run));
        }
    }
}

/// The target of the lines.
struct Screen {
    format: Format,
    redraw: bool,
    rate: Rate,
    last: String,
}

impl Screen {
    fn new(format: Format) -> Self {
        let redraw = format.is_table() && std::io::stdout().is_terminal();
        Self { format, redraw, rate: Rate::default(), last: String::new() }
    }

    /// Shows one answer. A reader that went away does not stop the following.
    fn show(&mut self, run: &Run) {
        let per_second = self.rate.observe(Instant::now(), run.counts.decided());
        let text = line(run, per_second);
        if text == self.last {
            return;
        }
        let shown = match (self.format.is_table(), self.redraw) {
            (false, _) => output::emit_next(self.format, &Progress(run)),
            (true, true) => write_stdout(&format!("\r\x1b[2K{text}")),
            (true, false) => write_stdout(&format!("{text}\n")),
        };
        if let Err(error) = shown {
            tracing::warn!(%error, "cannot write progress");
        }
        self.last = text;
    }

    fn end(&self) -> anyhow::Result<()> {
        if self.redraw { write_stdout("\n") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolloutctl::run_summary::sample;

    #[test]
    fn a_line_has_progress_rate_and_time_left() {
        let text = line(&sample(), Some(3_180.0));
        assert_eq!(
            text,
            "nightly-eval  running  71% decided  710,412 / 1,000,000  running 4,096  retrying 31  failed 2  \
             3,180 rows/s  eta 1m 31s"
        );
    }

    #[test]
    fn the_rate_follows_the_decided_rows() {
        let start = Instant::now();
        let mut rate = Rate::default();
        assert_eq!(rate.observe(start, 100), None);
        let second = rate.observe(start + Duration::from_secs(1), 600).unwrap();
        assert!((second - 500.0).abs() < 1e-6);
    }

    #[test]
    fn output_matches_the_golden_file() {
        let run = sample();
        let report = Progress(&run);
        crate::golden::report("run-watch.txt", &report);
    }
}

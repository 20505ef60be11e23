//! `rolloutctl top`: the cluster, its runs and its workers on one screen that stays current.
//!
//! Invariant: it is read-only, and uses one client. What is unavailable now is reported in its place, and the rest is
//! shown. Absent: any change.

mod screen;
mod tables;
mod view;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use rollout_proto::{CallOptions, Client, ClientError, services, v1};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use self::screen::{Screen, TerminalEvent};
use self::tables::Speeds;
use self::view::{KeyAction, View};
use super::Failure;
use super::run_summary::Run;
use super::status::{self, Survey};
use crate::connect::parse_duration;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// How often it is looked.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Interval between two refreshes
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    every: Duration,
}

/// With a shorter interval, a cluster would mostly answer this program.
const EVERY_MIN: Duration = Duration::from_millis(200);

/// The result of one refresh.
struct Refresh {
    survey: Survey,
    runs: Result<Vec<Run>, String>,
    workers: Result<Vec<v1::WorkerInfo>, String>,
}

/// Rows with an outcome per second, by run, between the last two refreshes.
#[derive(Default)]
struct Rates {
    last: Option<(Instant, BTreeMap<String, u64>)>,
}

impl Rates {
    fn observe(&mut self, now: Instant, runs: &[Run]) -> BTreeMap<String, f64> {
        let decided: BTreeMap<String, u64> =
            runs.iter().map(|run| (run.name.clone(), run.counts.decided())).collect();
        let before = self.last.replace((now, decided.clone()));
        let Some((then, before)) = before else { return BTreeMap::new() };
        let seconds = now.duration_since(then).as_secs_f64().max(0.001);
        let rate = |(name, after): (String, u64)| {
            let before = before.get(&name)?;
            let rate = after.saturating_sub(*before) as f64 / seconds;
            Some((name, rate))
        };
        decided.into_iter().filter_map(rate).collect()
    }
}

/// SIGINT, SIGTERM and a closed terminal: each ends the program cleanly.
struct Signals([Signal; 3]);

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let [int, term, hup] =
            [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        Ok(Self([signal(int)?, signal(term)?, signal(hup)?]))
    }

    async fn next(&mut self) {
        let [int, term, hup] = &mut self.0;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hup.recv() => {}
        }
    }
}

/// Why a wait ended.
enum Next<T> {
    Done(T),
    /// A key requests a refresh now.
    Refresh,
    Quit,
}

/// The screen, and its content.
struct Top {
    screen: Screen,
    signals: Signals,
    keys: mpsc::Receiver<TerminalEvent>,
    /// False once no more keys will arrive.
    has_keys: bool,
    view: View,
    refresh: Option<Refresh>,
    speeds: Speeds,
}

impl Top {
    fn open(colored: bool) -> std::io::Result<Self> {
        let signals = Signals::listen()?;
        let screen = Screen::open()?;
        let keys = screen::keys()?;
        let (view, speeds) = (View::new(colored), Speeds::new());
        Ok(Self { screen, signals, keys, has_keys: true, view, refresh: None, speeds })
    }

    fn draw(&mut self) -> std::io::Result<()> {
        let Self { screen, view, refresh, speeds, .. } = self;
        screen.draw(|frame| view.draw(frame, refresh.as_ref(), speeds))
    }

    /// Handles keys until `done` resolves.
    async fn until<T>(&mut self, done: impl Future<Output = T>) -> std::io::Result<Next<T>> {
        let mut done = std::pin::pin!(done);
        loop {
            let action = tokio::select! {
                value = &mut done => return Ok(Next::Done(value)),
                event = self.keys.recv(), if self.has_keys => match event {
                    Some(TerminalEvent::Key(key)) => self.view.key(key),
                    Some(TerminalEvent::Resized) => KeyAction::Redraw,
                    None => {
                        self.has_keys = false;
                        KeyAction::Redraw
                    }
                },
                () = self.signals.next() => KeyAction::Quit,
            };
            match action {
                KeyAction::Redraw => self.draw()?,
                KeyAction::Refresh => return Ok(Next::Refresh),
                KeyAction::Quit => return Ok(Next::Quit),
            }
        }
    }
}

impl Verb for TopArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Shows it until a key or a signal ends it.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        if !std::io::stdout().is_terminal() {
            let text = "top needs a terminal; elsewhere: rolloutctl status --watch -o jsonl";
            return Err(Failure::usage(text).into());
        }
        let settings = globals.connect.settings()?;
        let client = settings.client(Some(std::sync::Arc::new(|_: &str| {})))?;
        let every = self.every.max(EVERY_MIN);
        let mut top = Top::open(globals.verbosity.colors_a_terminal())?;
        let mut rates = Rates::default();
        top.draw()?;
        loop {
            match top.until(refresh(&client, &settings.namespace)).await? {
                Next::Done(refresh) => {
                    let speeds =
                        refresh.runs.as_ref().map(|runs| rates.observe(Instant::now(), runs));
                    top.speeds = speeds.unwrap_or_default();
                    top.refresh = Some(refresh);
                    top.draw()?;
                }
                Next::Refresh => continue,
                Next::Quit => return Ok(()),
            }
            if let Next::Quit = top.until(tokio::time::sleep(every)).await? {
                return Ok(());
            }
        }
    }
}

/// A refresh does not wait for a missing leader.
fn at_once() -> CallOptions {
    CallOptions { timeout: Some(Duration::from_secs(2)), ..CallOptions::read() }
}

async fn refresh(client: &Client, namespace: &str) -> Refresh {
    let survey = status::survey(client).await;
    if survey.leader.is_none() {
        let nobody = || match survey.health {
            status::DISTRUSTED => "the members and you do not trust each other".to_owned(),
            _ => "there is no leader, and only a leader can answer".to_owned(),
        };
        let (runs, workers) = (Err(nobody()), Err(nobody()));
        return Refresh { survey, runs, workers };
    }
    let words = |error: ClientError| error.to_string();
    let request = v1::ListRunsRequest { namespace: namespace.to_owned() };
    let runs = client
        .with_leader_opts("list runs", at_once(), |channel| {
            let request = request.clone();
            async move { services::runs(channel).list_runs(request).await }
        })
        .await
        .map(|answer| answer.runs.into_iter().map(Run::from).collect())
        .map_err(words);
    let request = v1::ListWorkersRequest { namespace: namespace.to_owned() };
    let workers = client
        .with_leader_opts("list workers", at_once(), |channel| {
            let request = request.clone();
            async move { services::cluster(channel).list_workers(request).await }
        })
        .await
        .map(|answer| answer.workers)
        .map_err(words);
    Refresh { survey, runs, workers }
}

#[cfg(test)]
mod tests {
    use super::super::run_summary::sample;
    use super::*;

    #[test]
    fn a_rate_counts_the_rows_decided_between_two_readings() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let mut run = sample();
        assert!(rates.observe(start, std::slice::from_ref(&run)).is_empty());
        run.counts.done += 500;
        let observed = rates.observe(start + Duration::from_secs(2), std::slice::from_ref(&run));
        assert!((observed[&run.name] - 250.0).abs() < 1e-6);
        let table = tables::runs(&[run], &observed, 0, false).to_string();
        assert!(table.contains("250"), "{table}");
    }
}

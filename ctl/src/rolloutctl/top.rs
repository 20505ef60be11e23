//! `rolloutctl top`: the cluster, its runs and its workers on one screen that stays current.
//!
//! Invariant: it only looks, and with one client; what cannot be had now is said in its place, and the rest is shown.
//! Deliberately absent: keys other than Ctrl-C, and any change.

mod screen;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use rollout_proto::{CallOptions, Client, ClientError, services, v1};

use self::screen::Screen;
use super::Failure;
use super::run::summary::Run;
use super::status::{self, Survey};
use crate::connect::{ConnectArgs, parse_duration};
use crate::output::{Align, Report as _, Table, count, duration, write_stdout};

/// How often it is looked.
#[derive(Debug, clap::Args)]
pub(crate) struct TopArgs {
    /// Between two looks
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    every: Duration,
}

/// Looked at more often, a cluster would mostly answer us.
const EVERY_MIN: Duration = Duration::from_millis(200);

/// What one look found.
struct Look {
    survey: Survey,
    runs: Result<Vec<Run>, String>,
    workers: Result<Vec<v1::WorkerInfo>, String>,
}

/// Rows with an outcome a second, run by run, between the last two looks.
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

/// Shows it until Ctrl-C.
pub(crate) async fn run(connect: &ConnectArgs, args: TopArgs) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() {
        let text = "top needs a terminal; elsewhere: rolloutctl status --watch -o jsonl";
        return Err(Failure::usage(text).into());
    }
    let settings = connect.settings()?;
    let client = settings.client(Some(std::sync::Arc::new(|_: &str| {})))?;
    let every = args.every.max(EVERY_MIN);
    let screen = Screen::open()?;
    let mut rates = Rates::default();
    // One for the whole command: whoever asks anew each time hears nothing of a Ctrl-C that came while it printed.
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let looked = tokio::select! {
            looked = look(&client, &settings.namespace) => looked,
            _ = &mut interrupt => break,
        };
        let speeds = looked.runs.as_ref().map(|runs| rates.observe(Instant::now(), runs));
        write_stdout(&screen.frame(&text(&looked, &speeds.unwrap_or_default())))?;
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = &mut interrupt => break,
        }
    }
    Ok(())
}

/// A look does not wait for a leader that is not there.
fn at_once() -> CallOptions {
    CallOptions { timeout: Some(Duration::from_secs(2)), ..CallOptions::read() }
}

async fn look(client: &Client, namespace: &str) -> Look {
    let survey = status::survey(client).await;
    if survey.leader.is_none() {
        let nobody = || match survey.health {
            status::DISTRUSTED => "no member is trusted, or trusts you".to_owned(),
            _ => "nobody leads, and only a leader knows".to_owned(),
        };
        let (runs, workers) = (Err(nobody()), Err(nobody()));
        return Look { survey, runs, workers };
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
    Look { survey, runs, workers }
}

fn text(look: &Look, rates: &BTreeMap<String, f64>) -> String {
    let mut text = look.survey.table();
    text.push('\n');
    match &look.runs {
        Ok(runs) => text.push_str(&runs_table(runs, rates).to_string()),
        Err(error) => text.push_str(&format!("runs     unknown: {error}\n")),
    }
    text.push('\n');
    match &look.workers {
        Ok(workers) => text.push_str(&workers_table(workers).to_string()),
        Err(error) => text.push_str(&format!("workers  unknown: {error}\n")),
    }
    text
}

/// What goes on first, the latest of what has ended last.
fn runs_table(runs: &[Run], rates: &BTreeMap<String, f64>) -> Table {
    let mut table = Table::new(&[
        "RUN", "STATE", "DECIDED", "DONE", "ROWS", "RUNNING", "FAILED", "ROWS/S", "ETA", "WHY",
    ]);
    for column in 2..8 {
        table = table.align(column, Align::Right);
    }
    let mut sorted: Vec<&Run> = runs.iter().collect();
    sorted.sort_by_key(|run| (run.ended(), std::cmp::Reverse(run.created_wall_ms)));
    for run in sorted {
        let counts = &run.counts;
        let rate = rates.get(&run.name).copied().filter(|rate| *rate > 0.0 && !run.ended());
        let left = counts.rows.saturating_sub(counts.decided()) as f64;
        table.row([
            run.name.clone(),
            run.state.to_owned(),
            format!("{}%", counts.percent()),
            count(counts.done),
            count(counts.rows),
            count(counts.running),
            count(counts.failed),
            rate.map_or("-".into(), |rate| count(rate as u64)),
            rate.map_or("-".into(), |rate| duration(left / rate)),
            run.why(),
        ]);
    }
    table
}

/// Who works most comes first.
fn workers_table(workers: &[v1::WorkerInfo]) -> Table {
    let mut table = Table::new(&["WORKER", "STATE", "SLOTS", "HELD", "DONE", "HEARD", "PROBLEM"]);
    for column in 2..5 {
        table = table.align(column, Align::Right);
    }
    let held = |worker: &v1::WorkerInfo| -> u64 {
        worker.slots.iter().map(|slot| u64::from(slot.rows_held)).sum()
    };
    let mut sorted: Vec<&v1::WorkerInfo> = workers.iter().collect();
    sorted.sort_by(|a, b| held(b).cmp(&held(a)).then(a.name.cmp(&b.name)));
    for worker in sorted {
        let problem =
            worker.slots.iter().find_map(|slot| match (slot.ineligible.as_str(), slot.cordoned) {
                ("", false) => None,
                ("", true) => Some(format!("slot {} cordoned: {}", slot.slot, slot.cordon_reason)),
                (why, _) => Some(why.to_owned()),
            });
        table.row([
            worker.name.clone(),
            worker.state.clone(),
            worker.slots.len().to_string(),
            count(held(worker)),
            count(worker.slots.iter().map(|slot| slot.rows_done).sum()),
            format!("{} ago", duration(worker.silent_ms as f64 / 1000.0)),
            problem.unwrap_or_default(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::alarm::seen::Alarm;
    use super::super::run::summary::sample;
    use super::*;

    #[test]
    fn what_is_not_known_is_said_in_its_place() {
        let workers =
            vec![v1::WorkerInfo { name: "w1".into(), state: "ready".into(), ..Default::default() }];
        let alarm = Alarm {
            kind: "NO_LEADER",
            member: None,
            what: "1 of 3 voters answer".into(),
            fix: "start the others".into(),
        };
        let look = Look {
            survey: Survey { health: "no leader", alarms: vec![alarm], ..Survey::default() },
            runs: Err("nobody leads".into()),
            workers: Ok(workers),
        };
        let shown = text(&look, &BTreeMap::new());
        assert!(shown.contains("runs     unknown: nobody leads"), "{shown}");
        assert!(shown.contains("alarm    NO_LEADER: 1 of 3 voters answer   fix: start"), "{shown}");
        assert!(shown.contains("w1      ready"), "{shown}");
    }

    #[test]
    fn a_rate_is_what_was_decided_between_two_looks() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let mut run = sample();
        assert!(rates.observe(start, std::slice::from_ref(&run)).is_empty());
        run.counts.done += 500;
        let observed = rates.observe(start + Duration::from_secs(2), std::slice::from_ref(&run));
        assert!((observed[&run.name] - 250.0).abs() < 1e-6);
        let table = runs_table(&[run], &observed).to_string();
        assert!(table.contains("250"), "{table}");
    }
}

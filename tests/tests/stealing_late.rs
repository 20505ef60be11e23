//! Whoever gave up a row and runs it all the same brings its result to no avail: the thief's is the row's.
//!
//! An honest worker drops what it gives up at once, so the victim here is the test itself.

use anyhow::{Context, Result, ensure};
use rollout_proto::{
    ChannelOptions, ClientTls, DialMap, Endpoint, ErrorCode, Security, channel, v1,
};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

const PATIENCE: Duration = Duration::from_secs(60);
const ROWS: u64 = 8;
/// Rows that the victim says it has started; half of the others are stolen.
const STARTED: u64 = 2;

/// A worker of one slot, which speaks for itself.
struct Victim {
    session: u64,
    epoch: u64,
    seq: u64,
    beats: u64,
    /// What it says in each heartbeat.
    load: v1::SlotLoad,
    started: Vec<v1::HeldRows>,
    out: mpsc::Sender<v1::WorkerMessage>,
    answers: Streaming<v1::LeaderMessage>,
}

impl Victim {
    async fn come(fleet: &Fleet, security: &Security) -> Result<Self> {
        let leader = fleet.leader();
        let tls = ClientTls::load(security)?;
        let endpoint = Endpoint::named(&leader, fleet.client_addr(&leader))?;
        let channel = channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?;
        let mut worker = v1::worker_client::WorkerClient::new(channel);
        let slot = v1::SlotOffer {
            models: vec!["*".into()],
            tasks: vec!["generate".into()],
            engine: "mock".into(),
            ..Default::default()
        };
        let register = v1::RegisterRequest {
            namespace: "default".into(),
            name: "victim".into(),
            instance: 1,
            slots: vec![slot],
            ..Default::default()
        };
        let registered = worker.register(register).await?.into_inner();
        let (out, queue) = mpsc::channel(16);
        let answers = worker.work(ReceiverStream::new(queue)).await?.into_inner();
        Ok(Self {
            session: registered.session,
            epoch: registered.header.context("a header")?.coord_epoch,
            seq: 0,
            beats: 0,
            load: v1::SlotLoad::default(),
            started: Vec::new(),
            out,
            answers,
        })
    }

    async fn say(&self, kind: Up) -> Result<()> {
        let (session, coord_epoch) = (self.session, self.epoch);
        let message = v1::WorkerMessage { session, coord_epoch, kind: Some(kind), instance: 1 };
        self.out.send(message).await.context("the stream has ended")
    }

    async fn beat(&mut self) -> Result<()> {
        self.beats += 1;
        let heartbeat = v1::Heartbeat {
            seq: self.beats,
            started: self.started.clone(),
            slots: vec![self.load],
            drain: None,
        };
        self.say(Up::Heartbeat(heartbeat)).await
    }

    /// Listens until the leader says something of that kind, and lives meanwhile.
    async fn until<T>(&mut self, what: &str, look: impl Fn(Down) -> Option<T>) -> Result<T> {
        let begun = Instant::now();
        self.beat().await?;
        loop {
            ensure!(begun.elapsed() < PATIENCE, "it was never told {what}");
            let message = self.answers.message();
            let Ok(message) = tokio::time::timeout(Duration::from_millis(300), message).await
            else {
                self.beat().await?;
                continue;
            };
            let kind = message?.context("the stream has ended")?.kind;
            if let Some(found) = kind.and_then(&look) {
                return Ok(found);
            }
        }
    }

    async fn exchange(&mut self, exchange: v1::Exchange) -> Result<v1::ExchangeAnswer> {
        self.seq += 1;
        let seq = self.seq;
        self.say(Up::Exchange(v1::Exchange { seq, ..exchange })).await?;
        self.until("an answer", |kind| match kind {
            Down::Exchange(answer) if answer.seq == seq => Some(answer),
            _ => None,
        })
        .await
    }
}

fn held(grant: &v1::Grant, start: u64, len: u64) -> v1::HeldRows {
    let rows = Some(v1::Rows { starts: vec![start], lens: vec![len as u32] });
    v1::HeldRows { run: grant.run, attempt: grant.attempt, rows }
}

/// A part of these rows, which is in no store: whoever accepted it could not read the run's results.
fn part(held: &v1::HeldRows) -> v1::PartResult {
    let part = v1::BlobRef { digest: vec![7; 32].into(), bytes: 100, ..Default::default() };
    v1::PartResult {
        run: held.run,
        part: Some(part),
        sets: vec![held.clone()],
        tokens_in: 1,
        tokens_out: 1,
    }
}

fn failure(held: &v1::HeldRows) -> v1::FailedAttempt {
    v1::FailedAttempt {
        run: held.run,
        attempt: held.attempt,
        rows: held.rows.clone(),
        class: v1::FailureClass::InvalidRow.into(),
        code: "late".into(),
        message: "it was not mine any more".into(),
        evidence: None,
    }
}

/// All of these rows are refused, for the attempt is not their last.
fn check_refused(answer: &v1::ExchangeAnswer, held: &v1::HeldRows) -> Result<()> {
    let rows = |rows: &Option<v1::Rows>| -> Vec<u64> {
        let ranges = rows.iter().flat_map(|r| r.starts.iter().zip(&r.lens));
        ranges.flat_map(|(start, len)| *start..start + u64::from(*len)).collect()
    };
    let refused: Vec<u64> = answer.refused.iter().flat_map(|r| rows(&r.rows)).collect();
    ensure!(refused == rows(&held.rows), "{answer:?}");
    let stale = ErrorCode::AttemptStale.code();
    ensure!(answer.refused.iter().all(|r| r.code == stale), "{answer:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_victims_late_result_of_a_stolen_row_is_refused_and_the_thiefs_is_the_rows() -> Result<()>
{
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let security = fleet.certify_worker("victim")?;
    let mut batch = Batch::submit(&fleet, "late", ROWS, "")?;
    batch.until(&fleet, "all rows are pending", |c| c.pending == ROWS);
    let mut victim = Victim::come(&fleet, &security).await?;
    let pull = v1::Exchange { credit_rows: ROWS as u32, ..Default::default() };
    let answer = victim.exchange(pull).await?;
    let [grant] = &answer.grants[..] else { anyhow::bail!("{answer:?}") };
    let queued = (ROWS - STARTED) as u32;
    victim.load = v1::SlotLoad { slot: 0, queued, running: STARTED as u32, concurrency: 2 };
    victim.started = vec![held(grant, 0, STARTED)];

    // The thief takes its time, so that the first late result comes while it runs the rows.
    let side = fleet.path("thief.side");
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 3000\nlatency_ms_max = 3000\n\
         side_file = {side:?}\n"
    );
    fleet.start_worker("thief", &WorkerOptions { engine, ..Default::default() })?;
    let asked = victim.until("to give up rows", |kind| match kind {
        Down::Yield(asked) => Some(asked),
        _ => None,
    });
    let asked = asked.await?;
    ensure!(asked.rows_max == queued.div_ceil(2), "half of what is not started: {asked:?}");
    let count = u64::from(asked.rows_max);
    let first = ROWS - count;
    let stolen = held(grant, first, count);
    victim.load.queued = 0;
    let given =
        v1::Exchange { r#yield: asked.id, yielded: vec![stolen.clone()], ..Default::default() };
    let answer = victim.exchange(given).await?;
    ensure!(answer.refused.is_empty(), "{answer:?}");

    // It has them all the same, and says so while the thief runs them, and when they are done.
    let late = v1::Exchange { parts: vec![part(&stolen)], ..Default::default() };
    check_refused(&victim.exchange(late.clone()).await?, &stolen)?;
    let failed = v1::Exchange { failures: vec![failure(&stolen)], ..Default::default() };
    check_refused(&victim.exchange(failed.clone()).await?, &stolen)?;
    let begun = Instant::now();
    while batch.counts(&fleet).is_none_or(|c| c.done < count) {
        ensure!(begun.elapsed() < PATIENCE, "the thief does not finish{}", fleet.logs());
        victim
            .until("that it is heard", |kind| matches!(kind, Down::Heartbeat(_)).then_some(()))
            .await?;
    }
    let before = batch.counts(&fleet).context("counts")?;
    for late in [late, failed] {
        check_refused(&victim.exchange(late).await?, &stolen)?;
    }
    ensure!(batch.counts(&fleet).context("counts")? == before, "{before:?} was changed");
    ensure!((before.done, before.failed) == (count, 0), "{before:?}");

    // What it never gave up is its own still: it gives it back, and the run ends.
    let rest = held(grant, 0, first);
    let answer = victim.exchange(v1::Exchange { nacks: vec![rest], ..Default::default() }).await?;
    ensure!(answer.refused.is_empty(), "{answer:?}");
    drop(victim);
    batch.finish(&fleet)?;
    let executions = Executions::read(&[side])?;
    ensure!(
        executions.started == ROWS && executions.attempts.len() as u64 == ROWS,
        "{executions:?}"
    );
    let run = fleet.ctl_json(&["run", "describe", "late"])?;
    let stolen = run["run"]["counts"]["stolen"].as_str();
    ensure!(stolen == Some(count.to_string().as_str()), "{run}");
    fleet.verify()?;
    fleet.passed()
}

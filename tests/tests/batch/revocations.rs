//! A worker that has lost rows learns it, whatever happens between it and its leader at that moment.
//!
//! The test plays the worker itself, to control when the worker sends what.

use anyhow::{Context, Result, ensure};
use rollout_proto::v1;
use rollout_tests::{Fleet, FleetOptions, PlayedWorker, dial};
use std::collections::BTreeSet;
use std::time::Duration;
use tonic::transport::Channel;
use v1::leader_message::Kind as Down;
use v1::runs_client::RunsClient;

const ROWS: u32 = 8;
/// Runs that are cancelled while their rows are granted.
const ROUNDS: u32 = 40;
const DIGEST: [u8; 32] = [7; 32];

/// A fleet in which no worker loses rows for being silent.
fn patient() -> FleetOptions {
    let member_lines = vec![("worker", "failure_ms = 600000")];
    FleetOptions { member_lines, ..FleetOptions::default() }
}

/// A user whose runs have an input that is in no store, because it is never read.
struct User {
    runs: RunsClient<Channel>,
    session: u64,
    seq: u64,
}

impl User {
    async fn come(fleet: &Fleet) -> Result<Self> {
        let mut runs = RunsClient::new(dial(fleet, &fleet.leader(), "client", "user")?);
        let open = v1::OpenSessionRequest { client_name: "revocations".into() };
        let session = runs.open_session(open).await?.into_inner().session;
        Ok(Self { runs, session, seq: 0 })
    }

    fn request(&mut self) -> Option<v1::RequestId> {
        self.seq += 1;
        Some(v1::RequestId { session: self.session, seq: self.seq, ack_upto: 0 })
    }

    async fn submit(&mut self, name: &str) -> Result<()> {
        let engine = v1::EngineSpec {
            model: "m".into(),
            task: "generate".into(),
            ..v1::EngineSpec::default()
        };
        let spec = v1::RunSpec {
            engine: Some(engine),
            sampling_json: "{}".into(),
            weight: 1,
            attempts_max: 1,
            failures_max: 100,
            ..v1::RunSpec::default()
        };
        let create = v1::CreateRunRequest {
            request: self.request(),
            namespace: "default".into(),
            name: name.into(),
            spec: Some(spec),
            folder: String::new(),
        };
        let created = self.runs.create_run(create).await?.into_inner();
        let key = format!("runs/default/{}/segments/{}", created.folder, "07".repeat(DIGEST.len()));
        let blob = v1::BlobRef { key, digest: DIGEST.to_vec().into(), bytes: 100 };
        let segment = v1::SegmentDecl { number: 0, rows: ROWS, blob: Some(blob) };
        let add = v1::AddSegmentsRequest {
            request: self.request(),
            run: created.run,
            segments: vec![segment],
            ..v1::AddSegmentsRequest::default()
        };
        self.runs.add_segments(add).await?;
        Ok(())
    }

    async fn cancel(&mut self, name: &str) -> Result<()> {
        let cancel = v1::ControlRunRequest {
            request: self.request(),
            namespace: "default".into(),
            name: name.into(),
            action: v1::RunAction::Cancel.into(),
            reason: "changed my mind".into(),
        };
        self.runs.control_run(cancel).await?;
        Ok(())
    }
}

/// Each row with its run and attempt.
type RowSet = BTreeSet<(u32, u64, u64)>;

fn each(held: &v1::HeldRows) -> RowSet {
    let rows = held.rows.iter().flat_map(|rows| rows.starts.iter().zip(&rows.lens));
    let rows = rows.flat_map(|(start, len)| *start..start + u64::from(*len));
    rows.map(|row| (held.run, held.attempt, row)).collect()
}

fn held(grant: &v1::Grant) -> v1::HeldRows {
    v1::HeldRows { run: grant.run, attempt: grant.attempt, rows: grant.rows.clone() }
}

/// Creates a run and grants all its rows to the worker.
async fn hold(user: &mut User, worker: &mut PlayedWorker, run: &str) -> Result<v1::HeldRows> {
    user.submit(run).await?;
    let pull = v1::Exchange { credit_rows: ROWS, ..Default::default() };
    let answer = worker.exchange(pull).await?;
    let [grant] = &answer.grants[..] else { anyhow::bail!("{answer:?}") };
    ensure!(each(&held(grant)).len() == ROWS as usize, "{answer:?}");
    Ok(held(grant))
}

/// The rows revoked before a heartbeat sent now is answered.
async fn revoked(worker: &mut PlayedWorker) -> Result<RowSet> {
    let mut revoked = RowSet::new();
    let seq = worker.beat().await?;
    worker
        .until("that it is heard", |kind| match kind {
            Down::Revoke(revoke) => {
                revoked.extend(revoke.rows.iter().flat_map(each));
                None
            }
            Down::Heartbeat(answer) if answer.seq >= seq => Some(()),
            _ => None,
        })
        .await?;
    Ok(revoked)
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_rows_taken_during_a_disconnection_are_revoked_on_the_next_stream() -> Result<()> {
    let mut fleet = Fleet::start(patient())?;
    let mut worker = PlayedWorker::come(&fleet, "w").await?;
    let mut old = None;
    for (run, leader_dies) in [("stream-breaks", false), ("leader-dies", true)] {
        let mut user = User::come(&fleet).await?;
        let mine = hold(&mut user, &mut worker, run).await?;
        worker.heartbeat.unfinished = vec![mine.clone()];
        ensure!(revoked(&mut worker).await?.is_empty(), "{run}: they are its own");
        worker.hang_up();
        user.cancel(run).await?;
        if leader_dies {
            let leader = fleet.leader();
            fleet.member_process(&leader).kill();
            fleet.leader_other_than(&leader);
            old = Some(leader);
        }
        worker.reconnect(&fleet).await?;
        let lost = revoked(&mut worker).await?;
        ensure!(lost == each(&mine), "{run}: reported {lost:?}, and had {mine:?}");
        worker.heartbeat.unfinished = Vec::new();
    }

    // A worker that does not report its waiting rows loses nothing by that.
    let mut user = User::come(&fleet).await?;
    let mine = hold(&mut user, &mut worker, "silent").await?;
    worker.hang_up();
    worker.reconnect(&fleet).await?;
    ensure!(revoked(&mut worker).await?.is_empty(), "it has lost nothing");
    let back = v1::Exchange { nacks: vec![mine], ..Default::default() };
    let answer = worker.exchange(back).await?;
    ensure!(answer.refused.is_empty(), "they were its own: {answer:?}");
    fleet.start_member(&old.context("a leader died")?)?;
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_have_ended_and_are_decided_are_not_revoked_on_the_next_stream() -> Result<()> {
    let fleet = Fleet::start(patient())?;
    let mut worker = PlayedWorker::come(&fleet, "w").await?;
    let mut user = User::come(&fleet).await?;
    let mine = hold(&mut user, &mut worker, "half-done").await?;
    // Half of them have failed for good, and the worker has not got the leader's acknowledgment.
    let half = u64::from(ROWS / 2);
    let rows_from = |start: u64| v1::HeldRows {
        rows: Some(v1::Rows { starts: vec![start], lens: vec![ROWS / 2] }),
        ..mine.clone()
    };
    let failed = v1::FailedAttempt {
        run: mine.run,
        attempt: mine.attempt,
        rows: rows_from(0).rows,
        class: v1::FailureClass::InvalidRow.into(),
        code: "e".into(),
        ..Default::default()
    };
    let said = v1::Exchange { failures: vec![failed], ..Default::default() };
    let answer = worker.exchange(said).await?;
    ensure!(answer.refused.is_empty(), "they were its own: {answer:?}");
    worker.heartbeat.started = vec![mine.clone()];
    worker.heartbeat.unfinished = vec![rows_from(half)];
    worker.hang_up();
    worker.reconnect(&fleet).await?;
    let lost = revoked(&mut worker).await?;
    ensure!(
        lost.is_empty(),
        "they were decided by its own word, and it is told that {lost:?} are lost"
    );

    // Rows that ended at the worker and were taken away are reported on the next stream.
    worker.hang_up();
    user.cancel("half-done").await?;
    worker.heartbeat.unfinished = Vec::new();
    worker.reconnect(&fleet).await?;
    let lost = revoked(&mut worker).await?;
    ensure!(lost == each(&rows_from(half)), "reported {lost:?}, and lost {half} and above");
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_granted_while_their_run_is_cancelled_are_revoked() -> Result<()> {
    let fleet = Fleet::start(patient())?;
    let mut worker = PlayedWorker::come(&fleet, "w").await?;
    let mut user = User::come(&fleet).await?;
    // It never reports its waiting rows: only the cancellation itself knows whose rows it took.
    worker.beat().await?;
    let (mut granted, mut told) = (RowSet::new(), RowSet::new());
    let mut take = |kind: Down| match kind {
        Down::Revoke(revoke) => {
            told.extend(revoke.rows.iter().flat_map(each));
            None
        }
        Down::Exchange(answer) => {
            granted.extend(answer.grants.iter().map(held).flat_map(|held| each(&held)));
            Some(answer.seq)
        }
        _ => None,
    };
    for round in 0..ROUNDS {
        let run = format!("r{round}");
        user.submit(&run).await?;
        worker.send(v1::Exchange { credit_rows: ROWS, ..Default::default() }).await?;
        // This waits for nothing: it makes the cancellation meet the grant at a different moment each time.
        tokio::time::sleep(Duration::from_micros(u64::from(round) * 100)).await;
        user.cancel(&run).await?;
    }
    let last = worker.send(v1::Exchange::default()).await?;
    worker.until("the last answer", |kind| take(kind).filter(|seq| *seq == last)).await?;
    told.extend(revoked(&mut worker).await?);
    ensure!(!granted.is_empty(), "no pull was in time");
    let untold: Vec<_> = granted.difference(&told).collect();
    ensure!(untold.is_empty(), "{untold:?} of {granted:?} were not reported as revoked");
    fleet.verify()?;
    fleet.passed()
}

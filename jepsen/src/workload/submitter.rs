//! Makes runs, repeats its requests under the same ids, and reads rows.
//!
//! *Invariant:* a request is sent again under its own id until it is answered or its session is
//! gone; nothing else is ever sent under that id.

use super::item::{Run, Shared, Style};
use crate::events::What;
use crate::history::LogPosition;
use crate::models::STRIKES_MAX;
use crate::recorder::By;
use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_proto::{CallOptions, Client, ClientError, ErrorCode, Session, services, v1};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const NAMESPACE: &str = "default";
/// The most rows of a run; they are its keys.
const ROWS_MAX: u32 = 12;
/// What is refused so because a run is not as its maker left it.
const NOT_AS_LEFT: &[ErrorCode] = &[
    ErrorCode::RunNotFound,
    ErrorCode::RunSpecConflict,
    ErrorCode::SegmentConflict,
    ErrorCode::InputClosed,
    ErrorCode::InputMismatch,
    ErrorCode::RunEnded,
];
/// How long a run is read before the next is made.
const RUN_MAX: Duration = Duration::from_secs(2);
/// The same where the next one waits until nothing is left of it, for only who is idle steals.
const TAIL_MAX: Duration = Duration::from_secs(12);
const READ_LIMIT: Duration = Duration::from_secs(3);

/// See the module.
pub(super) struct Submitter {
    name: &'static str,
    client: Client,
    shared: Arc<Shared>,
    rng: StdRng,
    session: Option<Session>,
    runs: u32,
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Submitter {
    pub(super) fn new(name: &'static str, client: Client, shared: Arc<Shared>, seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed ^ 0x5eed);
        Self { name, client, shared, rng, session: None, runs: 0 }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        while !self.shared.stopping() && !self.shared.dutiful() {
            self.runs += 1;
            let name = format!("{}-{}", self.name, self.runs);
            let Some(run) = self.make(&name).await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (begun, mut open) = (Instant::now(), true);
            let longest = match self.shared.style {
                Style::Item => RUN_MAX,
                Style::Steal => TAIL_MAX,
            };
            while begun.elapsed() < longest && !self.shared.stopping() {
                if self.shared.style == Style::Steal && !open {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(self.rng.random_range(100..600))).await;
                open = self.read(run).await.is_none_or(|undecided| undecided > 0);
            }
        }
        Ok(())
    }

    /// A run with its rows declared; `None` if its session ended on the way.
    pub(super) async fn make(&mut self, name: &str) -> Option<u32> {
        if self.session.is_none() {
            self.session = Some(self.client.open_session(self.name).await.ok()?);
        }
        let session = self.session.clone()?;
        let made = self.requests(&session, name).await;
        if made.is_none() {
            self.session = None;
        }
        made
    }

    async fn requests(&mut self, session: &Session, name: &str) -> Option<u32> {
        let rows = match self.shared.style {
            Style::Item => ROWS_MAX / 2,
            Style::Steal => ROWS_MAX,
        };
        let duplicates = self.shared.style == Style::Steal && self.rng.random_bool(0.5);
        let pending = session.request();
        let request = v1::CreateRunRequest {
            request: Some(pending.id()),
            namespace: NAMESPACE.into(),
            name: name.into(),
            spec: Some(spec(duplicates)),
            ..v1::CreateRunRequest::default()
        };
        // Whoever is asked twice draws a folder twice, and keeps the first.
        let create =
            |answer: &v1::CreateRunResponse| (answer.run, answer.created, answer.folder.clone());
        let (run, _, folder) = self
            .twice("create run", pending.id(), create, |channel| {
                let request = request.clone();
                async move { services::runs(channel).create_run(request).await }
            })
            .await?;
        pending.ack();
        let digest = *blake3::hash(name.as_bytes()).as_bytes();
        let key = format!("runs/{NAMESPACE}/{folder}/segments/{}", hex(&digest));
        self.shared.add_run(run, Run { name: name.into(), folder, rows, duplicates });
        let blob = v1::BlobRef { key, digest: digest.to_vec().into(), bytes: 1000 };
        // Some inputs come in pieces, as those do that take long to read.
        let pieces = if self.rng.random_ratio(1, 4) { 2 } else { 1 };
        for number in 0..pieces {
            if number > 0 {
                let later = Duration::from_millis(self.rng.random_range(50..800));
                tokio::time::sleep(later).await;
            }
            let (rows, blob) = (rows / pieces, Some(blob.clone()));
            let decl = v1::SegmentDecl { number, rows, blob };
            self.add_segment(session, run, decl).await?;
        }
        let pending = session.request();
        let request = v1::CloseInputRequest {
            request: Some(pending.id()),
            run,
            rows: u64::from(rows),
            digest: segments_digest(&digest, pieces).into(),
        };
        self.twice(
            "close input",
            pending.id(),
            |_: &v1::CloseInputResponse| (),
            |channel| {
                let request = request.clone();
                async move { services::runs(channel).close_input(request).await }
            },
        )
        .await?;
        Some(run)
    }

    async fn add_segment(
        &mut self,
        session: &Session,
        run: u32,
        segment: v1::SegmentDecl,
    ) -> Option<()> {
        let pending = session.request();
        let request = v1::AddSegmentsRequest {
            request: Some(pending.id()),
            run,
            segments: vec![segment],
            carried: Vec::new(),
        };
        let add = |answer: &v1::AddSegmentsResponse| (answer.segments, answer.rows);
        self.twice("add segments", pending.id(), add, |channel| {
            let request = request.clone();
            async move { services::runs(channel).add_segments(request).await }
        })
        .await?;
        pending.ack();
        Some(())
    }

    /// Sends a request until it is answered, and a third of them once more: the answer must be the
    /// same.
    async fn twice<T, K, F, Fut>(
        &mut self,
        what: &'static str,
        id: v1::RequestId,
        told: impl Fn(&T) -> K,
        send: F,
    ) -> Option<K>
    where
        T: rollout_proto::Answer,
        K: PartialEq + std::fmt::Debug,
        F: Fn(rollout_proto::Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let first = told(&self.until_answered(what, &send).await?);
        if self.rng.random_ratio(1, 3) {
            let second = told(&self.until_answered(what, &send).await?);
            self.shared.recorder.event(What::Repeated {
                what: what.into(),
                request_id: format!("{}/{}", id.session, id.seq),
                same: first == second,
                detail: format!("{first:?}, then {second:?}"),
            });
        }
        Some(first)
    }

    async fn until_answered<T, F, Fut>(&mut self, what: &'static str, send: &F) -> Option<T>
    where
        T: rollout_proto::Answer,
        F: Fn(rollout_proto::Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        loop {
            match self.client.with_leader(what, send).await {
                Ok(answer) => return Some(answer),
                Err(ClientError::Rpc(error)) if !error.code.retryable() => {
                    // Forgotten sessions are the cluster's right; all else is told.
                    if NOT_AS_LEFT.contains(&error.code) {
                        let (what, why) = (what.to_owned(), error.to_string());
                        self.shared.recorder.event(What::Refused { what, why });
                    } else if error.code != ErrorCode::SessionUnknown {
                        eprintln!("{what}: {error}");
                    }
                    return None;
                }
                Err(_) if self.shared.stopping() => return None,
                Err(_) => {}
            }
        }
    }

    /// Reads all rows of a run, as one operation on each. Returns how many are undecided, if that was
    /// answered.
    pub(super) async fn read(&mut self, run: u32) -> Option<u64> {
        let Run { rows, .. } = self.shared.run(run)?;
        let recorder = self.shared.recorder.clone();
        let ops: Vec<_> = (0..rows)
            .map(|row| recorder.invoke("read", format!("{run}/{row}"), Value::Null, None))
            .collect();
        let request = v1::ReadResultsRequest { run, first_segment: 0, segments_max: 0 };
        let options = CallOptions::read().timeout(READ_LIMIT);
        let stream = self.client.with_leader_opts("read results", options, |channel| async move {
            services::runs(channel).read_results(request).await
        });
        let (mut unread, mut undecided) = (ops.iter(), 0);
        let reading = async {
            let mut segments = stream.await.map_err(|error| error.to_string())?;
            while let Some(message) = segments.message().await.map_err(|e| e.to_string())? {
                let header = message.header.clone().unwrap_or_default();
                let by = By {
                    epoch: Some(header.coord_epoch),
                    at: Some(LogPosition::behind(header.applied_index)),
                    ..By::default()
                };
                for (row, op) in (0..message.rows as usize).zip(unread.by_ref()) {
                    let seen = outcome(&message, row);
                    undecided += u64::from(seen.is_null());
                    recorder.ok(op, seen, by.clone());
                }
            }
            Ok("the run does not have all of its rows yet".to_owned())
        };
        let ended = tokio::time::timeout(READ_LIMIT * 2, reading).await;
        let why = ended.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        let why = why.unwrap_or_else(|error| error);
        let mut complete = true;
        for op in unread {
            // A read changes nothing, whatever became of it.
            recorder.fail(op, why.clone());
            complete = false;
        }
        complete.then_some(undecided)
    }

    /// Where the rows of a run are, if that was answered.
    pub(super) async fn counts(&self, run: u32) -> Option<v1::RunCounts> {
        let name = self.shared.run(run)?.name;
        let request =
            v1::DescribeRunRequest { namespace: NAMESPACE.into(), name, ..Default::default() };
        let options = CallOptions::read().timeout(READ_LIMIT);
        let read = self.client.with_leader_opts("describe run", options, |channel| {
            let request = request.clone();
            async move { services::runs(channel).describe_run(request).await }
        });
        read.await.ok()?.run?.counts
    }
}

/// The digest of an input whose segments are all alike.
fn segments_digest(segment: &[u8; 32], count: u32) -> Vec<u8> {
    blake3::hash(&segment.repeat(count as usize)).as_bytes().to_vec()
}

/// What a segment says of a row: nil, false for a failure, or the digest of its part.
fn outcome(segment: &v1::ReadResultsResponse, row: usize) -> Value {
    let number = segment.first_row + row as u64;
    if segment.failures.iter().any(|failed| failed.row == number) {
        return Value::Bool(false);
    }
    let part = segment.parts.get(row).copied().unwrap_or_default();
    let part = (part as usize).checked_sub(1).and_then(|at| segment.part_table.get(at));
    part.map_or(Value::Null, |part| json!(hex(&part.digest)[..16].to_owned()))
}

pub(super) fn spec(tail_duplicates: bool) -> v1::RunSpec {
    let engine = v1::EngineSpec {
        model: "jepsen".into(),
        task: "generate".into(),
        options_json: "{}".into(),
        ..v1::EngineSpec::default()
    };
    v1::RunSpec {
        engine: Some(engine),
        sampling_json: "{}".into(),
        weight: 1,
        failures_max: ROWS_MAX + 1,
        attempts_max: u32::from(STRIKES_MAX),
        options_json: "{}".into(),
        tail_duplicates,
        ..v1::RunSpec::default()
    }
}

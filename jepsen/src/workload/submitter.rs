//! Creates runs, and reads their rows.
//!
//! *Invariant:* each request is recorded, and sent again under its own id until it is answered or its session is
//! gone. What was answered about a run stays true: the run exists from then on, and once it was complete it has all
//! of its rows.

use super::item::{RUN_PREFIX, Run, Shared, Style};
use super::repeat;
use super::trainers::{SendResult, Trainer};
use crate::events::EventKind;
use crate::history::LogPosition;
use crate::models::STRIKES_MAX;
use crate::recorder::By;
use anyhow::Result;
use rand::Rng;
use rollout_proto::{CallOptions, Channel, ErrorCode, HasHeader, services, v1};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Response, Status};

pub(super) const NAMESPACE: &str = "default";
/// The most rows of a run; they are its keys.
const ROWS_MAX: u32 = 12;
/// Error codes that show a run not in its acknowledged state.
const NOT_AS_LEFT: &[ErrorCode] = &[
    ErrorCode::RunNotFound,
    ErrorCode::RunSpecConflict,
    ErrorCode::SegmentConflict,
    ErrorCode::InputClosed,
    ErrorCode::InputMismatch,
    ErrorCode::RunEnded,
];
/// How long a run is read before the next one is made.
const RUN_MAX: Duration = Duration::from_secs(2);
/// The same if the next one waits until nothing of it is left, because only idle workers steal.
const TAIL_MAX: Duration = Duration::from_secs(12);
const READ_LIMIT: Duration = Duration::from_secs(3);

pub(super) struct Submitter {
    trainer: Trainer,
    shared: Arc<Shared>,
    runs: u32,
}

/// How a stream of results ended.
enum StreamEnd {
    /// Ended normally by its leader.
    Well,
    /// Ended otherwise; with the code of a refusal.
    Broken(Option<ErrorCode>, String),
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl Submitter {
    pub(super) fn new(trainer: Trainer, shared: Arc<Shared>) -> Self {
        Self { trainer, shared, runs: 0 }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        while !self.shared.stopping() && !self.shared.dutiful() {
            self.runs += 1;
            let name = format!("{}-{}", self.trainer.name, self.runs);
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
                self.trainer.pause(100..600).await;
                open = self.read(run).await.is_none_or(|undecided| undecided > 0);
            }
        }
        Ok(())
    }

    /// Makes a run and declares its rows; `None` if the outcome of one of its requests is unknown.
    pub(super) async fn make(&mut self, name: &str) -> Option<u32> {
        let _making = self.shared.making();
        let rows = match self.shared.style {
            Style::Item => ROWS_MAX / 2,
            Style::Steal => ROWS_MAX,
        };
        let duplicates = self.shared.style == Style::Steal && self.trainer.rng.random_bool(0.5);
        let (run, folder) = self.create(name, duplicates).await?;
        let digest = *blake3::hash(name.as_bytes()).as_bytes();
        let key = format!("runs/{NAMESPACE}/{folder}/segments/{}", hex(&digest));
        let made = Run { name: name.into(), folder, rows, duplicates, whole: false, gone: false };
        self.shared.add_run(run, made);
        let blob = v1::BlobRef { key, digest: digest.to_vec().into(), bytes: 1000 };
        // Some inputs come in pieces, like inputs that take long to read.
        let pieces = if self.trainer.rng.random_ratio(1, 4) { 2 } else { 1 };
        for number in 0..pieces {
            if number > 0 {
                self.trainer.pause(50..800).await;
            }
            let (rows, blob) = (rows / pieces, Some(blob.clone()));
            self.declare(name, run, v1::SegmentDecl { number, rows, blob }).await?;
        }
        self.close(name, run, rows, segments_digest(&digest, pieces)).await?;
        self.shared.is_whole(run);
        Some(run)
    }

    /// The run's number and folder.
    async fn create(&mut self, name: &str, duplicates: bool) -> Option<(u32, String)> {
        let send = |channel, id| {
            let request = v1::CreateRunRequest {
                request: Some(id),
                namespace: NAMESPACE.into(),
                name: name.into(),
                spec: Some(spec(duplicates)),
                ..v1::CreateRunRequest::default()
            };
            async move { services::runs(channel).create_run(request).await }
        };
        // A leader that gets the request twice draws a folder twice, and keeps the first.
        let summary =
            |answer: &v1::CreateRunResponse| json!([answer.run, answer.created, answer.folder]);
        let made = self.ask(name, "create", Value::Null, send, summary).await?;
        Some((made.run, made.folder))
    }

    async fn declare(&mut self, name: &str, run: u32, segment: v1::SegmentDecl) -> Option<()> {
        let given = json!([segment.number, segment.rows]);
        let send = |channel, id| {
            let request = v1::AddSegmentsRequest {
                request: Some(id),
                run,
                segments: vec![segment.clone()],
                carried: Vec::new(),
            };
            async move { services::runs(channel).add_segments(request).await }
        };
        let summary = |answer: &v1::AddSegmentsResponse| json!([answer.segments, answer.rows]);
        self.ask(name, "declare", given, send, summary).await.map(drop)
    }

    async fn close(&mut self, name: &str, run: u32, rows: u32, digest: Vec<u8>) -> Option<()> {
        let send = |channel, id| {
            let request = v1::CloseInputRequest {
                request: Some(id),
                run,
                rows: u64::from(rows),
                digest: digest.clone().into(),
            };
            async move { services::runs(channel).close_input(request).await }
        };
        let summary = |_: &v1::CloseInputResponse| Value::Null;
        self.ask(name, "close", json!(rows), send, summary).await.map(drop)
    }

    /// Sends one request about a run until it is answered.
    async fn ask<T, F, Fut>(
        &mut self,
        run: &str,
        f: &'static str,
        given: Value,
        send: F,
        summary: impl Fn(&T) -> Value,
    ) -> Option<T>
    where
        T: HasHeader,
        F: Fn(Channel, v1::RequestId) -> Fut,
        Fut: Future<Output = Result<Response<T>, Status>>,
    {
        let request = self.trainer.request().await?;
        let recorder = self.shared.recorder.clone();
        let id = Some(repeat::request_text(request.id()));
        let op = recorder.invoke(f, format!("{RUN_PREFIX}{run}"), given, id);
        match self.trainer.change(request, f, send, |answer| summary(answer).to_string()).await {
            SendResult::Answered(answer, by) => {
                recorder.ok(&op, summary(&answer), by);
                Some(answer)
            }
            SendResult::Refused(code, why) => {
                if NOT_AS_LEFT.contains(&code) {
                    let what = format!("a {f} of run {run}");
                    recorder.event(EventKind::Refused { what, why: why.clone() });
                } else {
                    eprintln!("{f} of run {run}: {why}");
                }
                recorder.fail(&op, why);
                None
            }
            SendResult::Lost(why) => {
                recorder.info(&op, why);
                None
            }
        }
    }

    /// Reads all rows of a run, as one operation on each. Returns how many are undecided, if that was
    /// answered.
    pub(super) async fn read(&mut self, number: u32) -> Option<u64> {
        let run = self.shared.run(number)?;
        let recorder = self.shared.recorder.clone();
        let ops: Vec<_> = (0..run.rows)
            .map(|row| recorder.invoke("read", format!("{number}/{row}"), Value::Null, None))
            .collect();
        let (rows, ended) = self.results(number).await;
        let (mut unread, mut undecided) = (ops.iter(), 0);
        let seen = rows.len();
        for ((row, by), op) in rows.into_iter().zip(unread.by_ref()) {
            undecided += u64::from(row.is_null());
            recorder.ok(op, row, by);
        }
        let why = match ended {
            StreamEnd::Well => {
                self.counted(number, &run, seen).await;
                "the run does not have all of its rows yet".to_owned()
            }
            StreamEnd::Broken(code, why) => {
                self.lacks(number, missing(&run, Err(code)));
                why
            }
        };
        let mut complete = true;
        for op in unread {
            // A read changes nothing, whatever its outcome.
            recorder.fail(op, why.clone());
            complete = false;
        }
        complete.then_some(undecided)
    }

    /// Checks the number of rows in a stream that ended normally. A member that exits may end a stream early, so
    /// missing rows are evidence only if a second stream lacks them too.
    async fn counted(&self, number: u32, run: &Run, seen: usize) {
        if missing(run, Ok(seen)).is_none() {
            return;
        }
        if let (rows, StreamEnd::Well) = self.results(number).await {
            self.lacks(number, missing(run, Ok(rows.len())));
        }
    }

    /// Records once that a run deviates from its answers.
    fn lacks(&self, number: u32, what: Option<String>) {
        let Some(why) = what else { return };
        if self.shared.is_gone(number) {
            let name = self.shared.run(number).map_or_else(String::new, |run| run.name);
            self.shared
                .recorder
                .event(EventKind::Refused { what: format!("a look at run {name}"), why });
        }
    }

    /// The results of a run's rows, in order, until the stream ended.
    async fn results(&self, run: u32) -> (Vec<(Value, By)>, StreamEnd) {
        let request = v1::ReadResultsRequest { run, first_segment: 0, segments_max: 0 };
        let options = CallOptions::read().timeout(READ_LIMIT);
        let client = &self.trainer.client;
        let stream = client.with_leader_opts("read results", options, |channel| async move {
            services::runs(channel).read_results(request).await
        });
        let mut rows = Vec::new();
        let reading = async {
            let mut segments = match stream.await {
                Ok(segments) => segments,
                Err(error) => return StreamEnd::Broken(error.code(), error.to_string()),
            };
            loop {
                let message = match segments.message().await {
                    Ok(Some(message)) => message,
                    Ok(None) => return StreamEnd::Well,
                    Err(status) => return StreamEnd::Broken(None, status.to_string()),
                };
                let header = message.header.clone().unwrap_or_default();
                let by = By {
                    epoch: Some(header.coord_epoch),
                    at: Some(LogPosition::behind(header.applied_index)),
                    answered_ns: Some(self.shared.recorder.now_ns()),
                    ..By::default()
                };
                let outcomes = (0..message.rows as usize).map(|row| outcome(&message, row));
                rows.extend(outcomes.map(|row| (row, by.clone())));
            }
        };
        let late = |_| StreamEnd::Broken(None, "no answer in time".to_owned());
        let ended = tokio::time::timeout(READ_LIMIT * 2, reading).await.unwrap_or_else(late);
        (rows, ended)
    }

    /// The counts of a run's rows by state, if answered.
    pub(super) async fn counts(&self, number: u32) -> Option<v1::RunCounts> {
        let run = self.shared.run(number)?;
        let (namespace, name) = (NAMESPACE.into(), run.name.clone());
        let request = v1::DescribeRunRequest { namespace, name, ..Default::default() };
        let options = CallOptions::read().timeout(READ_LIMIT);
        let client = &self.trainer.client;
        let read = client.with_leader_opts("describe run", options, |channel| {
            let request = request.clone();
            async move { services::runs(channel).describe_run(request).await }
        });
        match read.await {
            Ok(answer) => {
                let counts = answer.run?.counts?;
                let rows = usize::try_from(counts.rows).unwrap_or(usize::MAX);
                self.lacks(number, missing(&run, Ok(rows)));
                Some(counts)
            }
            Err(error) => {
                self.lacks(number, missing(&run, Err(error.code())));
                None
            }
        }
    }
}

/// How a run deviates from a leader's report: its number of rows, or the code of a refusal. `run` is what was known
/// before the leader was asked.
fn missing(run: &Run, found: Result<usize, Option<ErrorCode>>) -> Option<String> {
    let declared = run.rows as usize;
    match found {
        Err(Some(ErrorCode::RunNotFound)) => Some("it is not there any more".to_owned()),
        Ok(rows) if rows > declared || (run.whole && rows < declared) => {
            Some(format!("{declared} rows were declared, and it has {rows}"))
        }
        _ => None,
    }
}

/// The digest of an input whose segments are all alike.
fn segments_digest(segment: &[u8; 32], count: u32) -> Vec<u8> {
    blake3::hash(&segment.repeat(count as usize)).as_bytes().to_vec()
}

/// A row's outcome in a segment: nil, false for a failure, or the digest of its part.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_no_longer_matches_an_earlier_answer_is_reported() {
        let run = |whole| Run {
            name: "s1-1".to_owned(),
            folder: String::new(),
            rows: 6,
            duplicates: false,
            whole,
            gone: false,
        };
        let gone = Err(Some(ErrorCode::RunNotFound));
        assert!(missing(&run(true), gone).is_some(), "it was made whole");
        assert!(missing(&run(false), gone).is_some(), "it was made");
        for unknown in [Err(None), Err(Some(ErrorCode::NoLeader)), Ok(6)] {
            assert_eq!(missing(&run(true), unknown), None, "{unknown:?}");
        }
        assert_eq!(missing(&run(false), Ok(3)), None, "its rows were not all declared");
        for rows in [0, 5, 7] {
            assert!(missing(&run(true), Ok(rows)).is_some(), "{rows} of 6");
        }
        assert!(missing(&run(false), Ok(7)).is_some());
    }
}

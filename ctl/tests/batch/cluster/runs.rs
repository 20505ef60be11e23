//! The client's requests for runs: create, declare input, watch, read and end.

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use rollout_proto::fakes::runs_server::Runs;
use rollout_proto::{ErrorCode, RpcError, v1};
use tonic::{Request, Response, Status};

use super::{Run, Service, State, header, refuse};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Run {
    fn summary(&self, number: u32) -> v1::RunSummary {
        let failed = self.failures.len() as u64;
        let decided = self.outcomes.iter().filter(|outcome| outcome.is_some()).count() as u64;
        v1::RunSummary {
            run: number,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            state: self.state,
            reason: self.reason.clone(),
            counts: Some(v1::RunCounts {
                rows: self.outcomes.len() as u64,
                pending: self.outcomes.len() as u64 - decided,
                done: decided - failed,
                failed,
                tokens_out: decided * 3,
                ..Default::default()
            }),
            segments: self.segments.len() as u32,
            input_closed: self.closed,
            model: self.spec.engine.clone().unwrap_or_default().model,
            folder: self.folder.clone(),
            ..Default::default()
        }
    }
}

impl Service {
    fn created(&self, request: v1::CreateRunRequest) -> Result<v1::CreateRunResponse, Status> {
        let spec = request.spec.unwrap_or_default();
        let mut state = self.state.lock();
        *state.requests.entry(request.request.unwrap().seq).or_default() += 1;
        let mut found = None;
        for (number, run) in &state.runs {
            if (&run.namespace, &run.name) == (&request.namespace, &request.name) {
                if run.spec != spec {
                    return refuse(ErrorCode::RunSpecConflict);
                }
                found = Some(*number);
            }
        }
        let created = found.is_none();
        let number = found.unwrap_or(state.runs.len() as u32 + 1);
        let run = state.runs.entry(number).or_insert_with(|| Run {
            namespace: request.namespace,
            name: request.name,
            spec,
            state: v1::RunState::Running as i32,
            folder: request.folder,
            ..Run::default()
        });
        Ok(v1::CreateRunResponse {
            header: header(),
            run: number,
            created,
            segments: run.segments.len() as u32,
            rows: run.outcomes.len() as u64,
            input_closed: run.closed,
            folder: run.folder.clone(),
        })
    }

    fn added(&self, request: v1::AddSegmentsRequest) -> Result<v1::AddSegmentsResponse, Status> {
        let mut state = self.state.lock();
        let run = state.runs.get_mut(&request.run).unwrap();
        for segment in request.segments {
            match run.segments.get(segment.number as usize) {
                Some(have) if *have == segment => continue,
                Some(_) => return refuse(ErrorCode::SegmentConflict),
                None if segment.number as usize != run.segments.len() => {
                    return refuse(ErrorCode::SegmentConflict);
                }
                None if run.closed => return refuse(ErrorCode::InputClosed),
                None => {}
            }
            run.outcomes.resize(run.outcomes.len() + segment.rows as usize, None);
            run.segments.push(segment);
        }
        for carried in request.carried {
            let segment = run.segments[carried.segment as usize].blob.as_ref().unwrap();
            assert_eq!(segment.digest, carried.segment_digest);
            let (blob, rows) = (carried.blob.unwrap(), carried.rows.unwrap());
            let ranges = rows.starts.into_iter().zip(rows.lens);
            let rows = ranges.flat_map(|(start, len)| start..start + u64::from(len));
            for (at, row) in rows.enumerate() {
                run.outcomes[row as usize] = Some((blob.clone(), at as u32));
            }
        }
        Ok(v1::AddSegmentsResponse {
            header: header(),
            segments: run.segments.len() as u32,
            rows: run.outcomes.len() as u64,
        })
    }
}

#[tonic::async_trait]
impl Runs for Service {
    async fn open_session(
        &self,
        _: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let number = {
            let mut state = self.state.lock();
            state.sessions += 1;
            state.sessions
        };
        let waits = |state: &State| {
            let late = state.behavior.only_one_is_early && number > 1;
            state.sessions < state.behavior.together
                || (late && !state.runs.values().any(|run| run.closed))
        };
        while waits(&self.state.lock()) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let store_url = self.store.url().to_owned();
        Ok(Response::new(v1::OpenSessionResponse { header: header(), session: 5, store_url }))
    }

    async fn create_run(
        &self,
        request: Request<v1::CreateRunRequest>,
    ) -> Result<Response<v1::CreateRunResponse>, Status> {
        self.hinder("create", false).await?;
        let created = self.created(request.into_inner())?;
        self.hinder("create", true).await?;
        Ok(Response::new(created))
    }

    async fn add_segments(
        &self,
        request: Request<v1::AddSegmentsRequest>,
    ) -> Result<Response<v1::AddSegmentsResponse>, Status> {
        self.hinder("add", false).await?;
        let added = self.added(request.into_inner())?;
        self.hinder("add", true).await?;
        Ok(Response::new(added))
    }

    async fn close_input(
        &self,
        request: Request<v1::CloseInputRequest>,
    ) -> Result<Response<v1::CloseInputResponse>, Status> {
        self.hinder("close", false).await?;
        let request = request.into_inner();
        let first = {
            let mut state = self.state.lock();
            let run = state.runs.get_mut(&request.run).unwrap();
            let mut hasher = blake3::Hasher::new();
            for segment in &run.segments {
                hasher.update(&segment.blob.as_ref().unwrap().digest);
            }
            let same = hasher.finalize().as_bytes()[..] == request.digest[..];
            if request.rows != run.outcomes.len() as u64 || !same {
                return refuse(ErrorCode::InputMismatch);
            }
            !std::mem::replace(&mut run.closed, true)
        };
        if first {
            tokio::spawn(self.clone().work(request.run));
        }
        self.hinder("close", true).await?;
        Ok(Response::new(v1::CloseInputResponse { header: header() }))
    }

    async fn control_run(
        &self,
        request: Request<v1::ControlRunRequest>,
    ) -> Result<Response<v1::ControlRunResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state.lock();
        let found = state.runs.iter_mut().find(|(_, run)| run.name == request.name);
        let Some((number, run)) = found else { return refuse(ErrorCode::RunNotFound) };
        run.state = match request.action() {
            v1::RunAction::Cancel => v1::RunState::Cancelled,
            v1::RunAction::Pause => v1::RunState::Paused,
            _ => v1::RunState::Running,
        } as i32;
        run.reason = request.reason;
        let summary = run.summary(*number);
        Ok(Response::new(v1::ControlRunResponse { header: header(), run: Some(summary) }))
    }

    async fn list_runs(
        &self,
        request: Request<v1::ListRunsRequest>,
    ) -> Result<Response<v1::ListRunsResponse>, Status> {
        let namespace = request.into_inner().namespace;
        let state = self.state.lock();
        let mine = state.runs.iter().filter(|(_, run)| run.namespace == namespace);
        let runs = mine.map(|(number, run)| run.summary(*number)).collect();
        Ok(Response::new(v1::ListRunsResponse { header: header(), runs }))
    }

    async fn describe_run(
        &self,
        request: Request<v1::DescribeRunRequest>,
    ) -> Result<Response<v1::DescribeRunResponse>, Status> {
        let request = request.into_inner();
        let state = self.state.lock();
        let found = state
            .runs
            .iter()
            .find(|(_, run)| run.name == request.name && run.namespace == request.namespace);
        let Some((number, run)) = found else { return refuse(ErrorCode::RunNotFound) };
        Ok(Response::new(v1::DescribeRunResponse {
            header: header(),
            run: Some(run.summary(*number)),
            spec: Some(run.spec.clone()),
            spec_digest: vec![3; 32].into(),
            store_url: self.store.url().to_owned(),
            ..Default::default()
        }))
    }

    async fn watch_run(
        &self,
        request: Request<v1::WatchRunRequest>,
    ) -> Result<Response<Answers<v1::WatchRunResponse>>, Status> {
        let request = request.into_inner();
        let state = self.state.clone();
        let cut = {
            let mut state = state.lock();
            state.streams_opened += 1;
            state.behavior.cuts_streams_after
        };
        let stream = futures::stream::unfold(0, move |sent| {
            let (state, name) = (state.clone(), request.name.clone());
            async move {
                if cut.is_some_and(|cut| sent >= cut) {
                    let error = RpcError::new(ErrorCode::Fenced, "a newer leader took over");
                    return Some((Err(error.into()), usize::MAX - 1));
                }
                if sent > 0 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                let state = state.lock();
                let (number, run) = state.runs.iter().find(|(_, run)| run.name == name)?;
                let run = Some(run.summary(*number));
                Some((Ok(v1::WatchRunResponse { header: header(), run }), sent + 1))
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn read_results(
        &self,
        request: Request<v1::ReadResultsRequest>,
    ) -> Result<Response<Answers<v1::ReadResultsResponse>>, Status> {
        let request = request.into_inner();
        let mut state = self.state.lock();
        state.streams_opened += 1;
        if state.behavior.lists_nothing_after.is_some_and(|after| state.streams_opened > after) {
            return Ok(Response::new(Box::pin(futures::stream::pending())));
        }
        let cut = state.behavior.cuts_streams_after;
        let run = state.runs[&request.run].clone();
        let mut first_row = 0;
        let mut answers = Vec::new();
        for segment in &run.segments {
            let rows = first_row..first_row + u64::from(segment.rows);
            first_row = rows.end;
            if segment.number >= request.first_segment {
                answers.push(Ok(results(&run, segment, rows)));
            }
        }
        if let Some(cut) = cut.filter(|cut| *cut < answers.len()) {
            answers.truncate(cut);
            let error = RpcError::new(ErrorCode::NoQuorum, "cut off");
            answers.push(Err(error.into()));
        }
        Ok(Response::new(Box::pin(futures::stream::iter(answers))))
    }
}

fn results(
    run: &Run,
    segment: &v1::SegmentDecl,
    rows: std::ops::Range<u64>,
) -> v1::ReadResultsResponse {
    let mut answer = v1::ReadResultsResponse {
        header: header(),
        number: segment.number,
        first_row: rows.start,
        rows: segment.rows,
        blob: segment.blob.clone(),
        ..Default::default()
    };
    for row in rows.clone() {
        let (part, part_row) = match &run.outcomes[row as usize] {
            None => (0, 0),
            Some((blob, at)) => {
                let known = answer.part_table.iter().position(|known| known == blob);
                let place = known.unwrap_or_else(|| {
                    answer.part_table.push(blob.clone());
                    answer.part_table.len() - 1
                });
                (place as u32 + 1, *at)
            }
        };
        answer.parts.push(part);
        answer.part_rows.push(part_row);
    }
    let inside = run.failures.iter().filter(|failure| rows.contains(&failure.row));
    answer.failures = inside.cloned().collect();
    answer
}

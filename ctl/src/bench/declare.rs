//! Declares one run of the load: created, its segments added, its input closed, as `rollout` does it.
//!
//! Invariant: the input's digest is that of its segments in order, so every run is closed and can end.
//! Absent: prompts, unless [`Objects`] writes them: the benchmark measures the ledger, which knows a segment by its
//! digest.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::Context as _;
use rollout_proto::{Client, Session, services, v1};

use super::objects::Objects;

const SEGMENT_ROWS: u64 = 4096;
const SEGMENTS_PER_CALL: usize = 512;

/// The run to declare.
pub(in crate::bench) struct NewRun<'a> {
    pub(in crate::bench) namespace: &'a str,
    pub(in crate::bench) name: &'a str,
    pub(in crate::bench) model: &'a str,
    pub(in crate::bench) rows: u64,
    /// Labels that its slots must have.
    pub(in crate::bench) selector: HashMap<String, String>,
}

/// A request of a declaration, for callers that measure it.
#[derive(Debug, Clone, Copy)]
pub(in crate::bench) enum Step {
    CreateRun,
    AddSegments,
    CloseInput,
}

/// Creates a run without rows; returns its number and folder. `timed` gets the request's duration in microseconds.
pub(in crate::bench) async fn create_run(
    (client, session): (&Client, &Session),
    new: &NewRun<'_>,
    mut timed: impl FnMut(Step, u64),
) -> anyhow::Result<(u32, String)> {
    let start = Instant::now();
    let created = create(client, session, new).await.context("cannot create a run")?;
    timed(Step::CreateRun, start.elapsed().as_micros() as u64);
    Ok(created)
}

/// Declares all rows of a newly created run: from here on they can be granted.
pub(in crate::bench) async fn add_rows(
    (client, session, objects): (&Client, &Session, &Objects),
    new: &NewRun<'_>,
    (run, folder): (u32, &str),
    mut timed: impl FnMut(Step, u64),
) -> anyhow::Result<()> {
    let mut hasher = blake3::Hasher::new();
    let segments = new.rows.div_ceil(SEGMENT_ROWS);
    let mut decls = Vec::with_capacity(SEGMENTS_PER_CALL.min(segments as usize));
    for number in 0..segments {
        let rows = (new.rows - number * SEGMENT_ROWS).min(SEGMENT_ROWS) as u32;
        let blob = objects.segment((new.namespace, folder), number as u32, rows).await?;
        hasher.update(&blob.digest);
        decls.push(v1::SegmentDecl { number: number as u32, rows, blob: Some(blob) });
        if decls.len() == SEGMENTS_PER_CALL || number + 1 == segments {
            let start = Instant::now();
            add(client, session, run, std::mem::take(&mut decls))
                .await
                .context("cannot declare segments")?;
            timed(Step::AddSegments, start.elapsed().as_micros() as u64);
        }
    }
    let start = Instant::now();
    close(client, session, (run, new.rows), *hasher.finalize().as_bytes())
        .await
        .context("cannot close the input")?;
    timed(Step::CloseInput, start.elapsed().as_micros() as u64);
    Ok(())
}

async fn create(
    client: &Client,
    session: &Session,
    new: &NewRun<'_>,
) -> anyhow::Result<(u32, String)> {
    let pending = session.request();
    let engine = v1::EngineSpec {
        model: new.model.into(),
        task: "generate".into(),
        options_json: "{}".into(),
        ..v1::EngineSpec::default()
    };
    let spec = v1::RunSpec {
        engine: Some(engine),
        sampling_json: "{}".into(),
        selector: new.selector.clone(),
        weight: 1,
        failures_max: 1,
        attempts_max: 3,
        input_name: "rolloutctl bench".into(),
        options_json: "{}".into(),
        ..v1::RunSpec::default()
    };
    let request = v1::CreateRunRequest {
        request: Some(pending.id()),
        namespace: new.namespace.into(),
        name: new.name.into(),
        spec: Some(spec),
        ..v1::CreateRunRequest::default()
    };
    let answer = client
        .with_leader("create run", |channel| {
            let request = request.clone();
            async move { services::runs(channel).create_run(request).await }
        })
        .await?;
    Ok((answer.run, answer.folder))
}

async fn add(
    client: &Client,
    session: &Session,
    run: u32,
    segments: Vec<v1::SegmentDecl>,
) -> anyhow::Result<()> {
    let pending = session.request();
    let request =
        v1::AddSegmentsRequest { request: Some(pending.id()), run, segments, carried: Vec::new() };
    client
        .with_leader("add segments", |channel| {
            let request = request.clone();
            async move { services::runs(channel).add_segments(request).await }
        })
        .await?;
    Ok(())
}

async fn close(
    client: &Client,
    session: &Session,
    (run, rows): (u32, u64),
    digest: [u8; 32],
) -> anyhow::Result<()> {
    let pending = session.request();
    let digest = digest.to_vec().into();
    let request = v1::CloseInputRequest { request: Some(pending.id()), run, rows, digest };
    client
        .with_leader("close input", |channel| {
            let request = request.clone();
            async move { services::runs(channel).close_input(request).await }
        })
        .await?;
    Ok(())
}

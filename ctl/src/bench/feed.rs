//! Work for the load: runs of declared segments, made ahead of the claims.
//!
//! Invariant: rows that nobody was granted yet never run out while the load goes on, so that no pull
//! is parked; every run is closed. Deliberately absent: prompts, unless blobs are asked for: what is
//! measured is the ledger, which knows a segment by its digest.

use std::time::Instant;

use anyhow::{Context as _, bail};
use rollout_proto::{Client, Session, services, v1};
use rollout_storage::segment_key;

use super::coverage::Coverage;
use super::load::{Load, NAMESPACE};
use super::objects::Objects;

const SEGMENT_ROWS: u64 = 4096;
const SEGMENTS_PER_CALL: usize = 512;
/// Below the ledger's bound of runs, with room for those of others.
const RUNS_MAX: u32 = 9_000;
const MODEL: &str = "bench";

/// Makes runs.
pub(super) struct Feed {
    client: Client,
    session: Session,
    items: u64,
    nonce: u64,
    runs: u32,
}

impl Feed {
    /// Opens a session. Each run will have `items` rows.
    pub(super) async fn open(client: &Client, items: u64) -> anyhow::Result<Self> {
        let session = client.open_session("rolloutctl bench").await?;
        Ok(Self { client: client.clone(), session, items, nonce: rand::random(), runs: 0 })
    }

    /// The session, with which the runs are ended too.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Makes one more run and tells the load of its rows.
    pub(super) async fn add_run(&mut self, load: &Load, objects: &Objects) -> anyhow::Result<()> {
        if self.runs >= RUNS_MAX {
            bail!("over {RUNS_MAX} runs; measure for a shorter time or with more --items");
        }
        self.runs += 1;
        let name = format!("bench-{:016x}-{}", self.nonce, self.runs);
        let (run, folder) = self.create(load, &name).await?;
        // Known before its first row can be granted.
        load.with(|book| book.add_run(run, (name, folder.clone()), Coverage::new(self.items)));
        let mut hasher = blake3::Hasher::new();
        let segments = self.items.div_ceil(SEGMENT_ROWS);
        let mut decls = Vec::with_capacity(SEGMENTS_PER_CALL);
        for number in 0..segments {
            let rows = (self.items - number * SEGMENT_ROWS).min(SEGMENT_ROWS) as u32;
            let blob = objects.segment(&folder, number as u32, rows).await?;
            hasher.update(&blob.digest);
            decls.push(v1::SegmentDecl { number: number as u32, rows, blob: Some(blob) });
            if decls.len() == SEGMENTS_PER_CALL || number + 1 == segments {
                self.declare(load, run, std::mem::take(&mut decls)).await?;
            }
        }
        self.close(load, run, *hasher.finalize().as_bytes()).await?;
        load.with(|book| book.created_rows += self.items);
        Ok(())
    }

    async fn create(&self, load: &Load, name: &str) -> anyhow::Result<(u32, String)> {
        let pending = self.session.request();
        let engine = v1::EngineSpec {
            model: MODEL.into(),
            task: "generate".into(),
            options_json: "{}".into(),
            ..v1::EngineSpec::default()
        };
        let spec = v1::RunSpec {
            engine: Some(engine),
            sampling_json: "{}".into(),
            selector: load.labels(),
            weight: 1,
            failures_max: 1,
            attempts_max: 3,
            input_name: "rolloutctl bench".into(),
            options_json: "{}".into(),
            ..v1::RunSpec::default()
        };
        let request = v1::CreateRunRequest {
            request: Some(pending.id()),
            namespace: NAMESPACE.into(),
            name: name.into(),
            spec: Some(spec),
            ..v1::CreateRunRequest::default()
        };
        let start = Instant::now();
        let answer = self
            .client
            .with_leader("create run", |channel| {
                let request = request.clone();
                async move { services::runs(channel).create_run(request).await }
            })
            .await
            .context("cannot create a run")?;
        load.with(|book| book.create_run.record_us(start.elapsed().as_micros() as u64));
        Ok((answer.run, answer.folder))
    }

    async fn declare(
        &self,
        load: &Load,
        run: u32,
        segments: Vec<v1::SegmentDecl>,
    ) -> anyhow::Result<()> {
        let pending = self.session.request();
        let request = v1::AddSegmentsRequest {
            request: Some(pending.id()),
            run,
            segments,
            carried: Vec::new(),
        };
        let start = Instant::now();
        self.client
            .with_leader("add segments", |channel| {
                let request = request.clone();
                async move { services::runs(channel).add_segments(request).await }
            })
            .await
            .context("cannot declare segments")?;
        load.with(|book| book.add_segments.record_us(start.elapsed().as_micros() as u64));
        Ok(())
    }

    async fn close(&self, load: &Load, run: u32, digest: [u8; 32]) -> anyhow::Result<()> {
        let pending = self.session.request();
        let request = v1::CloseInputRequest {
            request: Some(pending.id()),
            run,
            rows: self.items,
            digest: digest.to_vec().into(),
        };
        let start = Instant::now();
        self.client
            .with_leader("close input", |channel| {
                let request = request.clone();
                async move { services::runs(channel).close_input(request).await }
            })
            .await
            .context("cannot close the input")?;
        load.with(|book| book.close_input.record_us(start.elapsed().as_micros() as u64));
        Ok(())
    }
}

/// The reference of a segment that nobody wrote.
pub(super) fn synthetic_segment(folder: &str, number: u32, rows: u32) -> v1::BlobRef {
    let mut hasher = blake3::Hasher::new();
    hasher.update(folder.as_bytes()).update(&number.to_le_bytes());
    let digest = *hasher.finalize().as_bytes();
    v1::BlobRef {
        key: segment_key(NAMESPACE, folder, &digest),
        digest: digest.to_vec().into(),
        bytes: u64::from(rows) * 250,
    }
}

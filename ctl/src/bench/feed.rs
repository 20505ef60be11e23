//! Work for the load: runs of declared segments, made ahead of the claims.
//!
//! Invariant: unclaimed rows never run out while the load continues, so no pull is parked; every run is closed.
//! Absent: prompts, unless blobs are requested: the benchmark measures the ledger, which knows a segment
//! by its digest.

use anyhow::bail;
use rollout_proto::{Client, Session};

use super::coverage::Coverage;
use super::declare::{NewRun, Step, add_rows, create_run};
use super::load::{Load, NAMESPACE};
use super::objects::Objects;

/// Below the ledger's bound of runs, with room for other clients' runs.
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

    /// The session, which also ends the runs.
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Makes one more run and tells the load about its rows.
    pub(super) async fn add_run(&mut self, load: &Load, objects: &Objects) -> anyhow::Result<()> {
        if self.runs >= RUNS_MAX {
            bail!("over {RUNS_MAX} runs; measure for a shorter time or with more --items");
        }
        self.runs += 1;
        let name = format!("bench-{:016x}-{}", self.nonce, self.runs);
        let new = NewRun {
            namespace: NAMESPACE,
            name: &name,
            model: MODEL,
            rows: self.items,
            selector: load.labels(),
        };
        let timed = |step, us| {
            load.with(|record| match step {
                Step::CreateRun => record.create_run.record_us(us),
                Step::AddSegments => record.add_segments.record_us(us),
                Step::CloseInput => record.close_input.record_us(us),
            });
        };
        let (run, folder) = create_run((&self.client, &self.session), &new, timed).await?;
        // The load must know the run before its first row can be granted.
        let run_of = (name.clone(), folder.clone());
        load.with(|record| record.add_run(run, run_of, Coverage::new(self.items)));
        add_rows((&self.client, &self.session, objects), &new, (run, &folder), timed).await?;
        load.with(|record| record.created_rows += self.items);
        Ok(())
    }
}

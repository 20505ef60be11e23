//! `Jobs`: training jobs as a whole.
//!
//! *Invariant:* each answer is of one moment of the ledger. Absent: changes, which belong to the services of the parts.

use super::barrier;
use super::namespace::Listed;
use super::rendezvous::{self, PAGE_MAX, no_job};
use super::training_convert::{checkpoint_out, job_in, job_out, training_out};
use super::{Shared, caller};
use crate::leader::state::LeaderState;
use rollout_ledger::JobOverview;
use rollout_ledger::id::LedgerMs;
use rollout_proto::v1;
use rollout_storage::BlobStore;
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct JobsService {
    shared: Arc<Shared>,
    store: BlobStore,
}

impl JobsService {
    pub(crate) fn new(shared: Arc<Shared>, store: BlobStore) -> Self {
        Self { shared, store }
    }
}

#[tonic::async_trait]
impl v1::jobs_server::Jobs for JobsService {
    async fn list(
        &self,
        request: Request<v1::JobListRequest>,
    ) -> Result<Response<v1::JobListResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.get_ref();
        let listed = Listed::of(&identity, &r.namespace)?;
        let leading = self.shared.reading_for(&request).await?;
        listed.check_is_there(&self.shared)?;
        let header = Some(self.shared.header());
        let jobs = self.shared.seen(|l| {
            let theirs = l.job_overviews().filter(|job| listed.has(&job.name.namespace));
            let asked = theirs.filter(|job| r.job.is_empty() || job.name.job == r.job);
            asked.map(|job| job_overview_out(&job, leading.as_deref())).collect()
        });
        Ok(Response::new(v1::JobListResponse { header, jobs }))
    }

    async fn describe(
        &self,
        request: Request<v1::JobDescribeRequest>,
    ) -> Result<Response<v1::JobDescribeResponse>, Status> {
        let identity = caller(&request)?;
        let job = job_in(&identity, request.get_ref().job.clone())?;
        let leading = self.shared.reading_for(&request).await?;
        let leading = leading.as_deref();
        let header = Some(self.shared.header());
        let url = self.store.url();
        let found = self.shared.seen(|l| {
            let now = leading.map_or_else(|| l.clock(), LeaderState::now);
            l.job_overview(&job).map(|overview| describe(&overview, (leading, now), url))
        });
        let mut answer = found.ok_or_else(|| no_job(&job))?;
        answer.header = header;
        Ok(Response::new(answer))
    }
}

/// A job in a list. Without a leader, the times that only a leader knows are left out.
fn job_overview_out(job: &JobOverview<'_>, leading: Option<&LeaderState>) -> v1::WholeJob {
    v1::WholeJob {
        name: Some(job_out(job.name)),
        rendezvous: job.participants.map(|view| rendezvous::info(view, leading)),
        training: job.training.map(|training| training_out(&training)),
    }
}

fn describe(
    job: &JobOverview<'_>,
    (leading, now): (Option<&LeaderState>, LedgerMs),
    store_url: &str,
) -> v1::JobDescribeResponse {
    let of_participants = job.participants.map(|view| rendezvous::describe(view, leading));
    let of_participants = of_participants.unwrap_or_default();
    let mut barriers: Vec<_> = job.participants.map_or_else(Vec::new, |view| {
        let all = view.barriers("").take(PAGE_MAX + 1);
        all.map(|(name, generation)| barrier::info(job.name, name, generation, now, false))
            .collect()
    });
    let more_barriers = barriers.len() > PAGE_MAX;
    barriers.truncate(PAGE_MAX);
    let checkpoints = job.training.into_iter().flat_map(|t| t.checkpoints().collect::<Vec<_>>());
    v1::JobDescribeResponse {
        header: None,
        job: Some(job_overview_out(job, leading)),
        participants: of_participants.participants,
        gone: of_participants.gone,
        barriers,
        more_barriers,
        checkpoints: checkpoints.map(|view| checkpoint_out(&view, store_url, false)).collect(),
    }
}

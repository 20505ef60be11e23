//! `Jobs`: training jobs as a whole.
//!
//! *Invariant:* each answer is of one moment of the ledger. Absent: changes, which belong to the services of the parts.

use super::barrier;
use super::namespace::Listed;
use super::rendezvous::{self, PAGE_MAX, no_job, page};
use super::training_convert::{
    checkpoint_out, job_in, job_out, training_out, training_summary_out,
};
use super::{Shared, caller};
use crate::leader::state::LeaderState;
use rollout_ledger::id::LedgerMs;
use rollout_ledger::{JobName, JobOverview, Ledger};
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
        let leader = self.shared.reading_for(&request).await?;
        listed.check_is_there(&self.shared)?;
        let header = Some(self.shared.header());
        let (jobs, more) = self.shared.read_ledger(|l| {
            let (jobs, more) = page_of(l, &listed, r);
            let out = jobs.iter().map(|job| {
                let training = job.training.as_ref().map(training_summary_out);
                job_out_with(job, training, leader.as_deref())
            });
            (out.collect::<Vec<_>>(), more)
        });
        Ok(Response::new(v1::JobListResponse { header, jobs, more }))
    }

    async fn describe(
        &self,
        request: Request<v1::JobDescribeRequest>,
    ) -> Result<Response<v1::JobDescribeResponse>, Status> {
        let identity = caller(&request)?;
        let job = job_in(&identity, request.get_ref().job.clone())?;
        let leader = self.shared.reading_for(&request).await?;
        let leader = leader.as_deref();
        let header = Some(self.shared.header());
        let url = self.store.url();
        let found = self.shared.read_ledger(|l| {
            let now = leader.map_or_else(|| l.clock(), LeaderState::now);
            l.job_overview(&job).map(|overview| describe(&overview, (leader, now), url))
        });
        let mut answer = found.ok_or_else(|| no_job(&job))?;
        answer.header = header;
        Ok(Response::new(answer))
    }
}

/// The page of jobs that a request asks for, and whether there are more behind it.
fn page_of<'a>(
    ledger: &'a Ledger,
    listed: &Listed,
    r: &v1::JobListRequest,
) -> (Vec<JobOverview<'a>>, bool) {
    let limit = page(r.limit);
    let name =
        |namespace: &str, job: &str| JobName { namespace: namespace.into(), job: job.into() };
    let overview = |name: &JobName| ledger.job_overview(name);
    let mut jobs: Vec<JobOverview<'a>> = match listed {
        Listed::One(namespace) if !r.job.is_empty() => {
            overview(&name(namespace, &r.job)).into_iter().collect()
        }
        Listed::One(namespace) => {
            let all = ledger.job_names_after(name(namespace, &r.after));
            let theirs = all.take_while(|name| name.namespace == *namespace);
            theirs.filter_map(overview).take(limit + 1).collect()
        }
        Listed::All(_) => {
            let all = ledger.job_names_after(name(&r.after_namespace, &r.after));
            let theirs = all.filter(|name| listed.has(&name.namespace));
            let asked = theirs.filter(|name| r.job.is_empty() || name.job == r.job);
            asked.filter_map(overview).take(limit + 1).collect()
        }
    };
    let more = jobs.len() > limit;
    jobs.truncate(limit);
    (jobs, more)
}

/// A job, with `training` as its part of trainers. Without a leader, the times that only a leader knows are left out.
fn job_out_with(
    job: &JobOverview<'_>,
    training: Option<v1::Job>,
    leader: Option<&LeaderState>,
) -> v1::WholeJob {
    v1::WholeJob {
        name: Some(job_out(job.name)),
        rendezvous: job.participants.map(|view| rendezvous::info(view, leader)),
        training,
        trainers: job.trainers,
        trainers_present: job.trainers_present,
        order: job.order,
    }
}

fn describe(
    job: &JobOverview<'_>,
    (leader, now): (Option<&LeaderState>, LedgerMs),
    store_url: &str,
) -> v1::JobDescribeResponse {
    let of_participants = job.participants.map(|view| rendezvous::describe(view, leader));
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
        job: Some(job_out_with(job, job.training.as_ref().map(training_out), leader)),
        participants: of_participants.participants,
        gone: of_participants.gone,
        barriers,
        more_barriers,
        checkpoints: checkpoints.map(|view| checkpoint_out(&view, store_url, false)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::ledger_read::ReadLedger;
    use crate::leader::state::test_leader::TestLeader;
    use rollout_config::coordinator::Workers;
    use rollout_ledger::{
        LossPolicy, ONE_RECORD_VERSION, OpKind, TrainerDecl, TrainerOp, limits, op,
    };
    use rollout_proto::Identity;

    fn job(name: &str) -> JobName {
        JobName { namespace: "default".into(), job: name.into() }
    }

    /// A job that participants use.
    fn closed(name: &str) -> OpKind {
        OpKind::CloseRendezvous(op::CloseRendezvous { job: job(name) })
    }

    /// A job with a trainer.
    fn joined(name: &str, trainer: &str) -> OpKind {
        let trainer = TrainerDecl {
            name: trainer.into(),
            host: "h".into(),
            instance: 1,
            keep_alive_ms: 60 * limits::KEEP_ALIVE_MIN_MS,
        };
        OpKind::Trainer(TrainerOp::Join { job: job(name), trainer, on_loss: LossPolicy::Continue })
    }

    /// The names in the answer, and whether there are more.
    fn listed(leader: &TestLeader, listed: &Listed, r: &v1::JobListRequest) -> (Vec<String>, bool) {
        leader.state.node.ledger(|l| {
            let (jobs, more) = page_of(l, listed, r);
            (jobs.iter().map(|job| job.name.job.clone()).collect(), more)
        })
    }

    async fn with_four_jobs(version: u32) -> TestLeader {
        let leader = TestLeader::start_version(version, Workers::default()).await;
        for kind in [closed("b"), joined("d", "t"), closed("a"), joined("c", "t"), joined("a", "t")]
        {
            leader.op(kind).await;
        }
        leader
    }

    #[tokio::test]
    async fn a_list_has_pages_in_which_each_job_is_once() {
        for version in [ONE_RECORD_VERSION - 1, ONE_RECORD_VERSION] {
            let leader = with_four_jobs(version).await;
            let one = Listed::One("default".into());
            for of in [one, Listed::All(Identity::insecure())] {
                let page = |after: &str, limit| {
                    let (after, after_namespace) = (after.to_owned(), "default".to_owned());
                    let r =
                        v1::JobListRequest { after, limit, after_namespace, ..Default::default() };
                    listed(&leader, &of, &r)
                };
                let names = |names: &[&str]| -> Vec<String> {
                    names.iter().map(|&name| name.to_owned()).collect()
                };
                assert_eq!(page("", 0), (names(&["a", "b", "c", "d"]), false), "{version} {of:?}");
                assert_eq!(page("", 3), (names(&["a", "b", "c"]), true), "{version} {of:?}");
                assert_eq!(page("c", 3), (names(&["d"]), false), "{version} {of:?}");
                assert_eq!(page("bb", 2), (names(&["c", "d"]), false), "bb is no job: {of:?}");
                let job = |name: &str| {
                    let r = v1::JobListRequest { job: name.into(), ..Default::default() };
                    listed(&leader, &of, &r)
                };
                assert_eq!(job("c"), (names(&["c"]), false), "{version} {of:?}");
                assert_eq!(job("none"), (names(&[]), false), "{version} {of:?}");
            }
            let other = Listed::One("other".into());
            assert!(listed(&leader, &other, &v1::JobListRequest::default()).0.is_empty());
            leader.end().await;
        }
    }

    #[tokio::test]
    async fn a_list_counts_trainers_and_says_which_job_is_newer() {
        for version in [ONE_RECORD_VERSION - 1, ONE_RECORD_VERSION] {
            let leader = with_four_jobs(version).await;
            leader.op(joined("a", "t2")).await;
            let jobs = leader.state.node.ledger(|l| {
                let one = Listed::One("default".into());
                let (jobs, _) = page_of(l, &one, &v1::JobListRequest::default());
                let out = jobs.iter().map(|job| {
                    job_out_with(job, job.training.as_ref().map(training_summary_out), None)
                });
                let mut out: Vec<v1::WholeJob> = out.collect();
                out.sort_by_key(|job| std::cmp::Reverse(job.order));
                let newest: Vec<&JobName> = l.job_overviews().map(|job| job.name).collect();
                let names = out.iter().map(|job| job.name.clone().unwrap_or_default().job);
                assert_eq!(
                    names.collect::<Vec<_>>(),
                    newest.iter().map(|name| name.job.clone()).collect::<Vec<_>>()
                );
                out
            });
            let of = |name: &str| {
                jobs.iter().find(|job| job.name.as_ref().is_some_and(|of| of.job == name))
            };
            let (a, b) = (of("a").expect("job a"), of("b").expect("job b"));
            assert_eq!((a.trainers, a.trainers_present, b.trainers), (2, 2, 0));
            let training = a.training.as_ref().expect("a training");
            let lineage = training.lineage.as_ref().expect("a lineage");
            assert!(training.trainers.is_empty() && lineage.trainers.is_empty(), "{training:?}");
            assert_eq!(lineage.number, 1);
            assert!(a.rendezvous.is_some() && b.training.is_none());
            leader.end().await;
        }
    }
}

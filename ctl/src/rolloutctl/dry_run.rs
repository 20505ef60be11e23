//! `--dry-run`: what a command would change, as far as that can be read beforehand.
//!
//! Invariant: it only reads: nothing is proposed or written. If the state read here shows that the cluster would
//! refuse the command, it is refused here, with the same exit code. Deliberately absent: a promise; state may change
//! before the command runs, and the cluster decides then.

mod certificates;
mod members;
mod runs;
mod settings;
mod snapshots;
#[cfg(test)]
mod tests;
mod training;

use rollout_proto::{Client, services, v1};
use serde::Serialize;

use self::runs::Change;
use super::Failure;
use super::cli::{
    BarrierVerb, CheckpointVerb, Cli, ClusterVerb, Command, DatasetVerb, ItemVerb, JobVerb,
    LeaderVerb, NamespaceVerb, RendezvousVerb, SnapshotVerb, WorkerVerb,
};
use super::consent::Consent;
use super::read::read;
use crate::connect::ConnectSettings;
use crate::output::counted;
use crate::output::{self, Report};

/// The planned change, and what it affects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Plan {
    /// The change, as the words after "would".
    would: String,
    /// The present state.
    now: String,
}

impl Plan {
    fn new(would: impl Into<String>, now: impl Into<String>) -> Self {
        Self { would: would.into(), now: now.into() }
    }

    /// Combines several plans.
    fn of_all(plans: Vec<Self>) -> Self {
        let joined =
            |part: fn(&Self) -> &str| plans.iter().map(part).collect::<Vec<_>>().join("; ");
        Self::new(joined(|plan| &plan.would), joined(|plan| &plan.now))
    }
}

impl Report for Plan {
    const KIND: &'static str = "Plan";

    fn table(&self) -> String {
        format!("would {}\n  now: {}\nnothing was changed\n", self.would, self.now)
    }
}

/// Prints what the command would change. Exit code 2 for a command that changes nothing.
pub(super) async fn show(cli: Cli) -> anyhow::Result<()> {
    let plan = match cli.command {
        Command::Checkpoint { verb: CheckpointVerb::Prune(args) } => {
            // The leader itself lists what would be removed.
            return super::checkpoint::prune::run(&cli.connect, cli.output, args, None, true).await;
        }
        Command::Cluster { verb: ClusterVerb::Upgrade(args) } => {
            let (connect, format) = (&cli.connect, cli.output);
            return super::cluster::upgrade::run(connect, format, args, Consent::Given, true).await;
        }
        Command::Cert { verb } if !certificates::asks_the_cluster(&verb) => {
            certificates::plan(&cli.connect, verb)?
        }
        Command::Snapshot { verb: SnapshotVerb::Restore(args) } => snapshots::restore(&args)?,
        command => {
            let settings = cli.connect.settings()?;
            let client = settings.client(None)?;
            let reader = Reader { client, settings };
            reader.plan(command).await?
        }
    };
    output::emit(cli.output, &plan)
}

fn changes_nothing() -> anyhow::Error {
    Failure::usage("--dry-run is for commands that change something; this one has no such mode")
        .into()
}

/// The state of a worker.
fn standing(worker: &v1::WorkerInfo) -> String {
    let held: u64 = worker.slots.iter().map(|slot| u64::from(slot.rows_held)).sum();
    let cordoned = worker.slots.iter().filter(|slot| slot.cordoned).count();
    format!(
        "{}; {}, {cordoned} cordoned; it holds {}",
        worker.state,
        counted(worker.slots.len() as u64, "slot"),
        counted(held, "row")
    )
}

/// Reads the state that a plan needs.
struct Reader {
    client: Client,
    settings: ConnectSettings,
}

impl Reader {
    async fn plan(&self, command: Command) -> anyhow::Result<Plan> {
        match command {
            Command::Run { verb } => self.run(verb).await,
            Command::Item { verb: ItemVerb::Retry(args) } => {
                let rows = counted(args.rows.len() as u64, "row");
                let would = format!("try {rows} of run {} again", args.run);
                self.on_run(&args.run, Change::Retry, would).await
            }
            Command::Worker { verb } => self.worker(verb).await,
            Command::Namespace { verb: NamespaceVerb::SetQuota(args) } => {
                self.quotas(&args.names, args.create).await
            }
            Command::Rendezvous { verb: RendezvousVerb::Close(args) } => {
                self.rendezvous(&args.jobs).await
            }
            Command::Barrier { verb: BarrierVerb::Abort(args) } => {
                self.barriers(&args.job, &args.barriers).await
            }
            Command::Cluster { verb: ClusterVerb::Bootstrap(args) } => self.bootstrap(&args).await,
            Command::Cluster { verb: ClusterVerb::Set(args) } => self.setting(&args).await,
            Command::Dataset { verb: DatasetVerb::Create(args) } => {
                self.create_dataset(&args).await
            }
            Command::Dataset { verb: DatasetVerb::Delete(args) } => {
                self.delete_datasets(&args.names).await
            }
            Command::Job { verb: JobVerb::Delete(args) } => self.delete_jobs(&args.jobs).await,
            Command::Checkpoint { verb: CheckpointVerb::Abort(args) } => {
                self.abort_checkpoints(&args).await
            }
            Command::Checkpoint { verb: CheckpointVerb::Label(args) } => {
                self.label_checkpoint(&args).await
            }
            Command::Token { verb } => self.token(verb).await,
            Command::Cert { verb } => self.revocation(verb).await,
            Command::Snapshot { verb } => self.snapshot(verb).await,
            Command::Member { verb } => self.member(verb).await,
            Command::Leader { verb: LeaderVerb::Transfer(args) } => {
                self.transfer(args.name.as_deref()).await
            }
            _ => Err(changes_nothing()),
        }
    }

    async fn worker(&self, verb: WorkerVerb) -> anyhow::Result<Plan> {
        let slot = |slot: Option<u32>| slot.map_or(String::new(), |n| format!(" slot {n}"));
        let (names, before, behind) = match verb {
            WorkerVerb::Cordon(args) => {
                (args.names, "give worker", format!("{} no more work", slot(args.slot)))
            }
            WorkerVerb::Uncordon(args) => {
                (args.names, "give worker", format!("{} work again", slot(args.slot)))
            }
            WorkerVerb::Drain(args) => (args.names, "drain worker", " and have it leave".into()),
            WorkerVerb::List(_) | WorkerVerb::Describe(_) => return Err(changes_nothing()),
        };
        let request = v1::ListWorkersRequest { namespace: self.settings.namespace.clone() };
        let answer = read(&self.client, "list workers", &request, |channel, request| async move {
            services::cluster(channel).list_workers(request).await
        })
        .await?;
        let mut plans = Vec::new();
        for name in names {
            let Some(worker) = answer.workers.iter().find(|worker| worker.name == name) else {
                return Err(Failure::not_found(format!("no worker {name} is registered")).into());
            };
            plans.push(Plan::new(format!("{before} {name}{behind}"), standing(worker)));
        }
        Ok(Plan::of_all(plans))
    }

    async fn quotas(&self, names: &[String], create: bool) -> anyhow::Result<Plan> {
        let mut plans = Vec::with_capacity(names.len());
        for name in names {
            plans.push(self.quota(name, create).await?);
        }
        Ok(Plan::of_all(plans))
    }

    async fn quota(&self, name: &str, create: bool) -> anyhow::Result<Plan> {
        let now = match super::namespace::describe::ask(&self.client, name).await {
            Ok(found) => super::namespace::describe::told(found),
            Err(error) if create && error.exit_code() == 4 => "it is not there".to_owned(),
            Err(error) => return Err(error.into()),
        };
        Ok(Plan::new(format!("set the quota of namespace {name}"), now))
    }

    async fn rendezvous(&self, jobs: &[String]) -> anyhow::Result<Plan> {
        let mut plans = Vec::with_capacity(jobs.len());
        for job in jobs {
            plans.push(self.one_rendezvous(job).await?);
        }
        Ok(Plan::of_all(plans))
    }

    async fn one_rendezvous(&self, job: &str) -> anyhow::Result<Plan> {
        let namespace = self.settings.namespace.clone();
        let name = v1::JobName { namespace, job: job.to_owned() };
        let request = v1::RendezvousDescribeRequest { job: Some(name), ..Default::default() };
        let described =
            read(&self.client, "describe rendezvous", &request, |channel, request| async move {
                services::rendezvous(channel).describe(request).await
            })
            .await;
        let now = match described {
            Ok(answer) => {
                let info = answer.rendezvous.unwrap_or_default();
                let participants = counted(info.participants.into(), "participant");
                format!("{}, round {}, {participants}", info.state, info.round)
            }
            // An unused rendezvous is closed before its first participant joins.
            Err(error) if error.exit_code() == 4 => "it does not exist yet".to_owned(),
            Err(error) => return Err(error.into()),
        };
        Ok(Plan::new(
            format!("close the rendezvous of job {job} permanently: no participant can join"),
            now,
        ))
    }

    async fn barriers(&self, job: &str, barriers: &[String]) -> anyhow::Result<Plan> {
        let mut plans = Vec::with_capacity(barriers.len());
        for barrier in barriers {
            plans.push(self.barrier(job, barrier).await?);
        }
        Ok(Plan::of_all(plans))
    }

    async fn barrier(&self, job: &str, barrier: &str) -> anyhow::Result<Plan> {
        let namespace = self.settings.namespace.clone();
        let name = v1::JobName { namespace, job: job.to_owned() };
        let name = v1::BarrierName { job: Some(name), barrier: barrier.to_owned() };
        let request = v1::BarrierDescribeRequest { barrier: Some(name) };
        let answer =
            read(&self.client, "describe barrier", &request, |channel, request| async move {
                services::barrier(channel).describe(request).await
            })
            .await?;
        let now = answer.generations.last().map_or("it does not exist yet".to_owned(), |last| {
            format!(
                "generation {} is {}: {} of {} arrived",
                last.generation, last.state, last.arrived, last.expected
            )
        });
        Ok(Plan::new(format!("abort barrier {barrier} of {job}, if it waits"), now))
    }
}

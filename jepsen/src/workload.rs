//! What clients do while faults are injected: one file per workload.
//!
//! *Invariant:* a workload records the answers that clients got, not what it believes. It ends with a write that must
//! succeed after healing, and with reads of everything that it made.

pub mod barrier;
pub mod batches;
pub mod item;
mod kv_store;
mod positioned;
pub mod rendezvous;
mod repeat;
mod requester;
pub mod session;
mod sessions;
mod shard_trainer;
pub mod shards;
pub mod store;
mod store_readers;
mod submitter;
mod trainers;
mod worker;
mod worker_processes;

use crate::fleet::Fleet;
use crate::nemesis::Family;
use crate::recorder::Recorder;
use anyhow::Result;
use clap::ValueEnum;
use std::sync::Arc;
use std::time::Duration;

/// The workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// Rows of small runs, for which raw workers (clients of the protocol, without engines) compete
    Item,
    /// Like item, with few rows and greedy workers, so that rows are often stolen and run twice
    Steal,
    /// Requests repeated with the same id, and sessions that have ended
    Session,
    /// Whole batches of the real client, executed by real workers that are also killed and stopped
    Run,
    /// Keys of a training job's store, and waits for them
    Store,
    /// Participants of a training job that meet in rounds, die and come back
    Rendezvous,
    /// Barriers of a training job at which participants die and come back
    Barrier,
    /// Shards of a training job whose trainers die between checkpoints, and recover
    Shards,
}

impl WorkloadName {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Item,
        Self::Steal,
        Self::Session,
        Self::Run,
        Self::Store,
        Self::Rendezvous,
        Self::Barrier,
        Self::Shards,
    ];

    /// Its name on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Item => "item",
            Self::Steal => "steal",
            Self::Session => "session",
            Self::Run => "run",
            Self::Store => "store",
            Self::Rendezvous => "rendezvous",
            Self::Barrier => "barrier",
            Self::Shards => "shards",
        }
    }

    /// The workload of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// The names that need a client's certificate.
    pub fn clients(self) -> &'static [&'static str] {
        match self {
            Self::Item | Self::Steal => item::CLIENTS,
            Self::Session => session::CLIENTS,
            Self::Run => batches::CLIENTS,
            Self::Store => store::CLIENTS,
            Self::Rendezvous => rendezvous::CLIENTS,
            Self::Barrier => barrier::CLIENTS,
            Self::Shards => shards::CLIENTS,
        }
    }

    /// The names that need a worker's certificate.
    pub fn workers(self) -> &'static [&'static str] {
        match self {
            Self::Item | Self::Steal => item::WORKERS,
            Self::Session => session::WORKERS,
            Self::Run => batches::WORKERS,
            Self::Store | Self::Rendezvous | Self::Barrier | Self::Shards => &[],
        }
    }

    /// Starts every client.
    ///
    /// # Errors
    /// When a client cannot be made.
    pub fn start(
        self,
        fleet: &Fleet,
        recorder: &Arc<Recorder>,
        nemesis: &[Family],
        seed: u64,
    ) -> Result<Running> {
        Ok(match self {
            Self::Item => Running::Rows(item::start(fleet, recorder, seed, item::Style::Item)?),
            Self::Steal => Running::Rows(item::start(fleet, recorder, seed, item::Style::Steal)?),
            Self::Session => Running::Sessions(session::start(fleet, recorder, seed)?),
            Self::Run => Running::Batches(batches::start(fleet, recorder, nemesis, seed)?),
            Self::Store => Running::Store(store::start(fleet, recorder, nemesis, seed)?),
            Self::Rendezvous => Running::Rendezvous(rendezvous::start(fleet, recorder, seed)?),
            Self::Barrier => Running::Barrier(barrier::start(fleet, recorder, seed)?),
            Self::Shards => Running::Shards(shards::start(fleet, recorder, seed)?),
        })
    }
}

pub enum Running {
    /// See [`WorkloadName`].
    Rows(item::Running),
    /// See [`WorkloadName`].
    Sessions(session::Running),
    /// See [`WorkloadName`].
    Batches(batches::Running),
    /// See [`WorkloadName`].
    Store(store::Running),
    /// See [`WorkloadName`].
    Rendezvous(rendezvous::Running),
    /// See [`WorkloadName`].
    Barrier(barrier::Running),
    /// See [`WorkloadName`].
    Shards(shards::Running),
}

impl Running {
    /// Waits, after everything was healed, for a write that succeeds; then stops all clients and reads everything
    /// once more.
    ///
    /// # Errors
    /// Errors of clients that faults do not explain.
    pub async fn finish(self, recovery: Duration) -> Result<()> {
        match self {
            Self::Rows(running) => running.finish(recovery).await,
            Self::Sessions(running) => running.finish(recovery).await,
            Self::Batches(running) => running.finish(recovery).await,
            Self::Store(running) => running.finish(recovery).await,
            Self::Rendezvous(running) => running.finish(recovery).await,
            Self::Barrier(running) => running.finish(recovery).await,
            Self::Shards(running) => running.finish(recovery).await,
        }
    }
}

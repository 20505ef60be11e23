//! The whole state, and the log position at which it holds.
//!
//! *Invariant:* two ledgers that applied the same entries are equal, whatever they were loaded from and however their
//! images were cut. The fields below the line are derived from those above it and rebuilt on loading.

use crate::batch::eligibility::{Eligibility, NeedNo, Turn};
use crate::batch::incident_slots::IncidentSlots;
use crate::batch::run::{Run, RunState};
use crate::batch::tally::Tally;
use crate::batch::unreported_starts::UnreportedStarts;
use crate::fleet::setting::Settings;
use crate::fleet::size::Fleet;
use crate::fleet::worker::Worker;
use crate::identity::client::Client;
use crate::identity::member::Members;
use crate::identity::remembered::RememberedValues;
use crate::identity::revocation::{Revocation, Revoked};
use crate::identity::token::Token;
use crate::kernel::counts::Counts;
use crate::kernel::due::Deadlines;
use crate::kernel::id::{
    CoordEpoch, DatasetNo, JobNo, LedgerMs, RunNo, SessionId, SlotRef, StoreNo, TrainingNo,
};
use crate::kernel::namespace::{self, Namespace};
use crate::machine::command::StoreName;
use crate::machine::event::Event;
use crate::machine::image::Dirty;
use crate::training::dataset::Dataset;
use crate::training::job::{Job, JobName};
use crate::training::state::{Training, TrainingName};
use crate::training::store::Store;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The position of a log entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryId {
    /// Its index; the first entry has 1 or more.
    pub index: u64,
    /// The term of the leader that appended it.
    pub term: u64,
}

/// An entry that this version cannot read: the member must stop, because skipping it would make it differ from the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log entry {index} holds a command that this version does not know")]
pub struct UnknownCommand {
    /// The entry.
    pub index: u64,
}

/// The version of commands and formats that a new cluster starts with.
pub(crate) const FIRST_VERSION: u32 = 1;

/// The replicated state.
#[derive(Clone, Debug)]
pub struct Ledger {
    pub(crate) meta: Meta,
    pub(crate) namespaces: BTreeMap<String, Namespace>,
    pub(crate) runs: BTreeMap<RunNo, Run>,
    pub(crate) workers: BTreeMap<SessionId, Worker>,
    /// Rows that suspect workers may have started.
    pub(crate) unreported_starts: BTreeMap<SessionId, UnreportedStarts>,
    pub(crate) clients: BTreeMap<SessionId, Client>,
    pub(crate) stores: BTreeMap<StoreNo, Store>,
    pub(crate) jobs: BTreeMap<JobNo, Job>,
    pub(crate) datasets: BTreeMap<DatasetNo, Dataset>,
    pub(crate) trainings: BTreeMap<TrainingNo, Training>,
    pub(crate) tokens: BTreeMap<String, Token>,
    /// Shared with readers that keep it: its address tells them whether it has changed.
    pub(crate) revocations: Arc<BTreeMap<Revoked, Revocation>>,
    /// As their leaders have seen them.
    pub(crate) members: Members,
    /// The first client session whose holder is named as cluster version 3 names it; 0 if all are.
    pub(crate) holders_from: SessionId,
    pub(crate) settings: Settings,
    // Derived.
    pub(crate) run_names: BTreeMap<(String, String), RunNo>,
    pub(crate) worker_names: BTreeMap<(String, String), SessionId>,
    pub(crate) fleet: Fleet,
    /// When runs, attempts, sessions and tokens end.
    pub(crate) deadlines: Deadlines,
    /// Sums over runs and slots.
    pub(crate) tally: Tally,
    /// Which runs slots may serve, and which run is next.
    pub(crate) index: Eligibility,
    /// Runs that have a trial to give.
    pub(crate) trial_runs: BTreeSet<RunNo>,
    /// The same, by their needs.
    pub(crate) trial_runs_of: BTreeMap<NeedNo, BTreeSet<RunNo>>,
    /// Runs at their tails, and runs that will be once a slot holds a row of them.
    pub(crate) tail_runs: BTreeSet<RunNo>,
    /// Runs that are paused.
    pub(crate) paused_runs: BTreeSet<RunNo>,
    /// Runs that have rows to give since this operation, and had none before it.
    pub(crate) joining: BTreeSet<RunNo>,
    /// Runs that have no rows to give since this operation, and had some before it.
    pub(crate) resting: BTreeSet<RunNo>,
    /// Namespaces in which, since this operation, slots have gone, or runs came, ended, were paused or resumed.
    pub(crate) reshaped: BTreeSet<String>,
    /// All runs that have lapsed attempts, and some that had.
    pub(crate) lapsed_runs: BTreeSet<RunNo>,
    /// How many client sessions each holder has.
    pub(crate) holders: Counts,
    /// Client sessions by when they were last used.
    pub(crate) client_uses: BTreeSet<(LedgerMs, SessionId)>,
    /// Stores' values in the answers remembered for clients.
    pub(crate) remembered: RememberedValues,
    /// Rows that wait, by time.
    pub(crate) waiting: BTreeSet<(LedgerMs, RunNo, u64)>,
    /// When incidents of rows end. Some entries are of incidents that ended earlier.
    pub(crate) incident_ends: BTreeSet<(LedgerMs, RunNo, u64)>,
    /// When cordons for failures of rows end. Some entries are of cordons that ended earlier.
    pub(crate) cordon_ends: BTreeSet<(LedgerMs, SlotRef)>,
    /// Which slots have incidents with a row.
    pub(crate) incident_slots: IncidentSlots,
    pub(crate) store_names: BTreeMap<StoreName, StoreNo>,
    /// Stores of each namespace.
    pub(crate) stores_in: Counts,
    /// Stores by when they were last used.
    pub(crate) store_uses: BTreeSet<(LedgerMs, StoreNo)>,
    /// Bytes of all stores.
    pub(crate) store_bytes: u64,
    /// Counts changes of stores. No part of the state.
    pub(crate) store_changes: u64,
    pub(crate) job_names: BTreeMap<JobName, JobNo>,
    /// Jobs of each namespace.
    pub(crate) jobs_in: Counts,
    /// Participants of jobs by their incarnations.
    pub(crate) incarnations: BTreeMap<SessionId, (JobNo, String)>,
    /// Jobs by when they have something to do.
    pub(crate) job_times: BTreeSet<(LedgerMs, JobNo)>,
    /// Counts changes of jobs. No part of the state.
    pub(crate) job_changes: u64,
    pub(crate) job_outcomes: u64,
    pub(crate) dataset_names: BTreeMap<(String, String), DatasetNo>,
    pub(crate) training_names: BTreeMap<TrainingName, TrainingNo>,
    /// Training jobs of each namespace.
    pub(crate) trainings_in: Counts,
    /// Trainers by when they are lost.
    pub(crate) trainer_ends: BTreeSet<(LedgerMs, TrainingNo, String)>,
    /// Counts changes of training jobs. No part of the state.
    pub(crate) training_changes: u64,
    pub(crate) dirty: Dirty,
    pub(crate) digest_request: Option<u64>,
    /// Events since the last call of `take_events`. Not part of the state.
    pub(crate) events: Vec<Event>,
    pub(crate) scratch: Vec<u8>,
}

/// The record of the image that belongs to nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) cluster_id: [u8; 16],
    /// The clusters that it was restored from, the last one last.
    pub(crate) ancestors: Vec<[u8; 16]>,
    pub(crate) applied: EntryId,
    pub(crate) clock: LedgerMs,
    pub(crate) epoch: CoordEpoch,
    pub(crate) version: u32,
    pub(crate) runs_made: u32,
    pub(crate) stores_made: u32,
    pub(crate) jobs_made: u32,
    pub(crate) datasets_made: u32,
    pub(crate) trainings_made: u32,
    /// The run whose turn it is within each priority.
    pub(crate) turns: BTreeMap<u8, RunNo>,
    pub(crate) chain: [u8; 32],
    /// The chain at the latest multiples of [`crate::machine::digest::MARK_EVERY`].
    pub(crate) chain_marks: BTreeMap<u64, [u8; 32]>,
}

impl Ledger {
    /// The state of a new cluster.
    pub fn new(cluster_id: [u8; 16]) -> Self {
        let meta = Meta { cluster_id, version: FIRST_VERSION, ..Meta::default() };
        let mut ledger = Self::empty(meta);
        ledger.namespaces.insert(namespace::DEFAULT.into(), Namespace::default());
        ledger.dirty.meta = true;
        ledger.dirty.namespaces.insert(namespace::DEFAULT.into());
        ledger
    }

    pub(crate) fn empty(meta: Meta) -> Self {
        Self {
            meta,
            namespaces: BTreeMap::new(),
            runs: BTreeMap::new(),
            workers: BTreeMap::new(),
            unreported_starts: BTreeMap::new(),
            clients: BTreeMap::new(),
            holders: Counts::default(),
            client_uses: BTreeSet::new(),
            remembered: RememberedValues::default(),
            run_names: BTreeMap::new(),
            worker_names: BTreeMap::new(),
            fleet: Fleet::default(),
            deadlines: Deadlines::default(),
            tally: Tally::default(),
            index: Eligibility::default(),
            trial_runs: BTreeSet::new(),
            trial_runs_of: BTreeMap::new(),
            tail_runs: BTreeSet::new(),
            paused_runs: BTreeSet::new(),
            joining: BTreeSet::new(),
            resting: BTreeSet::new(),
            reshaped: BTreeSet::new(),
            lapsed_runs: BTreeSet::new(),
            waiting: BTreeSet::new(),
            incident_ends: BTreeSet::new(),
            cordon_ends: BTreeSet::new(),
            incident_slots: IncidentSlots::default(),
            stores: BTreeMap::new(),
            store_names: BTreeMap::new(),
            stores_in: Counts::default(),
            store_uses: BTreeSet::new(),
            store_bytes: 0,
            store_changes: 0,
            jobs: BTreeMap::new(),
            job_names: BTreeMap::new(),
            jobs_in: Counts::default(),
            incarnations: BTreeMap::new(),
            job_times: BTreeSet::new(),
            job_changes: 0,
            job_outcomes: 0,
            datasets: BTreeMap::new(),
            trainings: BTreeMap::new(),
            tokens: BTreeMap::new(),
            revocations: Arc::default(),
            members: Members::default(),
            holders_from: SessionId::default(),
            settings: Settings::default(),
            dataset_names: BTreeMap::new(),
            training_names: BTreeMap::new(),
            trainings_in: Counts::default(),
            trainer_ends: BTreeSet::new(),
            training_changes: 0,
            dirty: Dirty::default(),
            digest_request: None,
            events: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// The last entry that was applied.
    pub fn applied(&self) -> EntryId {
        self.meta.applied
    }

    /// The open epoch; 0 before the first.
    pub fn epoch(&self) -> CoordEpoch {
        self.meta.epoch
    }

    /// Ledger time.
    pub fn clock(&self) -> LedgerMs {
        self.meta.clock
    }

    /// The cluster's identity: epochs are meaningful only within one cluster.
    pub fn cluster_id(&self) -> [u8; 16] {
        self.meta.cluster_id
    }

    /// The version that gates commands and formats.
    pub fn version(&self) -> u32 {
        self.meta.version
    }

    /// Updates the index for one run: called whenever the rows that it may give have changed.
    pub(crate) fn refresh_active(&mut self, no: RunNo) {
        let before = self.index.turn(no).is_some();
        let need = self.index.need(no);
        let state = self.runs.get(&no).map(|run| run.head.state);
        let paused = state == Some(RunState::Paused);
        let open = paused || state == Some(RunState::Running);
        let was_paused = match paused {
            true => !self.paused_runs.insert(no),
            false => self.paused_runs.remove(&no),
        };
        if open != self.index.need(no).is_some() || paused != was_paused {
            self.reshape_with(no);
        }
        let run = self.runs.get(&no).filter(|run| !run.ended());
        let turn = run.filter(|run| run.gives()).map(|run| Turn {
            priority: Reverse(run.head.spec.priority),
            time: if self.is_fair() { run.head.service } else { 0 },
            run: no,
        });
        let tries = turn.is_some() && run.is_some_and(|run| run.ready_trials().next().is_some());
        match run {
            Some(run) => self.index.set_run(no, (&run.head.namespace, &run.head.spec), turn),
            None => self.index.remove_run(no),
        }
        self.list_trials(no, self.index.need(no).or(need), tries);
        match self.runs.get(&no).is_some_and(Run::nears_tail) {
            true => self.tail_runs.insert(no),
            false => self.tail_runs.remove(&no),
        };
        match (before, turn.is_some()) {
            (false, true) if !self.resting.remove(&no) => {
                self.joining.insert(no);
            }
            (true, false) if !self.joining.remove(&no) => {
                self.resting.insert(no);
            }
            _ => {}
        }
    }
}

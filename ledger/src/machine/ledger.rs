//! The whole state, and the log position at which it holds.
//!
//! *Invariant:* two ledgers that applied the same entries are equal, whatever they were loaded from and however their
//! images were cut. The fields below the line are derived from those above it and rebuilt on loading.
//!
//! A domain that is a struct of its own has private fields: it keeps its indexes, and marks its records for the image.
//! What concerns several domains is a function here or in the folder of the operation that causes it. It calls one
//! domain after the other, in a fixed order.

use crate::batch::cordon_ends::CordonEnds;
use crate::batch::eligibility::Eligibility;
use crate::batch::incident_slots::IncidentSlots;
use crate::batch::run_lists::RunLists;
use crate::batch::runs::Runs;
use crate::batch::tally::Tally;
use crate::batch::turn_changes::TurnChanges;
use crate::batch::unreported_starts::SuspectStarts;
use crate::fleet::setting::ClusterSettings;
use crate::fleet::workers::Workers;
use crate::identity::api_keys::ApiKeys;
use crate::identity::client::Clients;
use crate::identity::member::MemberReports;
use crate::identity::namespace::{self, Namespaces};
use crate::identity::revocation::Revocations;
use crate::identity::token::Tokens;
use crate::kernel::deadline_queue::Deadlines;
use crate::kernel::id::{CoordEpoch, LedgerMs, RunNo};
use crate::machine::event::Events;
use crate::openai::batches::Batches;
use crate::openai::files::ApiFiles;
use crate::training::dataset::Datasets;
use crate::training::job::Jobs;
use crate::training::store::Stores;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    pub(crate) namespaces: Namespaces,
    pub(crate) runs: Runs,
    pub(crate) workers: Workers,
    pub(crate) unreported_starts: SuspectStarts,
    pub(crate) clients: Clients,
    pub(crate) stores: Stores,
    pub(crate) jobs: Jobs,
    pub(crate) datasets: Datasets,
    pub(crate) tokens: Tokens,
    pub(crate) api_keys: ApiKeys,
    pub(crate) revocations: Revocations,
    pub(crate) members: MemberReports,
    pub(crate) settings: ClusterSettings,
    pub(crate) api_files: ApiFiles,
    pub(crate) batches: Batches,
    // Derived.
    /// When runs, attempts and sessions end.
    pub(crate) deadlines: Deadlines,
    /// Sums over runs and slots.
    pub(crate) tally: Tally,
    /// Which runs slots may serve, and which run is next.
    pub(crate) index: Eligibility,
    /// Runs that have bisection groups, near their tails, or are paused.
    pub(crate) run_lists: RunLists,
    /// What has changed for turns since this operation began.
    pub(crate) turn_changes: TurnChanges,
    /// When cordons for failures of rows end.
    pub(crate) cordon_ends: CordonEnds,
    /// Which slots have incidents with a row.
    pub(crate) incident_slots: IncidentSlots,
    /// Whether the record of [`Meta`] differs from the image.
    pub(super) meta_dirty: bool,
    pub(super) digest_request: Option<u64>,
    /// Events since the last call of `take_events`. Not part of the state.
    pub(crate) events: Events,
    pub(super) scratch: Vec<u8>,
}

/// The record of the image that belongs to nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(super) cluster_id: [u8; 16],
    /// The clusters that it was restored from, the last one last.
    pub(super) ancestors: Vec<[u8; 16]>,
    pub(super) applied: EntryId,
    pub(super) clock: LedgerMs,
    pub(super) epoch: CoordEpoch,
    pub(super) version: u32,
    runs_made: u32,
    // Counted by the domains that make them.
    pub(crate) stores_made: u32,
    pub(crate) jobs_made: u32,
    pub(crate) datasets_made: u32,
    /// Below version 4 only: then a training has the number of its job.
    pub(crate) trainings_made: u32,
    /// The run whose turn it is within each priority.
    turns: BTreeMap<u8, RunNo>,
    pub(super) chain: [u8; 32],
    /// The chain at the latest multiples of [`crate::machine::digest::MARK_EVERY`].
    pub(super) chain_marks: BTreeMap<u64, [u8; 32]>,
}

impl Meta {
    /// Ledger time.
    pub(crate) fn clock(&self) -> LedgerMs {
        self.clock
    }

    /// Ledger time is at least this from now on.
    pub(crate) fn advance_clock(&mut self, at: LedgerMs) {
        self.clock = self.clock.max(at);
    }

    /// The open epoch; 0 before the first.
    pub(crate) fn epoch(&self) -> CoordEpoch {
        self.epoch
    }

    /// The version that gates commands and formats.
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// The number of a new run. No other run ever has it.
    pub(crate) fn next_run(&mut self) -> RunNo {
        self.runs_made += 1;
        RunNo(self.runs_made)
    }

    /// The run whose turn it is within a priority; 0 if there was none yet.
    pub(crate) fn turn_of(&self, priority: u8) -> RunNo {
        self.turns.get(&priority).copied().unwrap_or_default()
    }

    /// Within a priority it is this run's turn.
    pub(crate) fn set_turn(&mut self, priority: u8, run: RunNo) {
        self.turns.insert(priority, run);
    }

    /// The cluster's version has no turns from now on.
    pub(crate) fn forget_turns(&mut self) {
        self.turns.clear();
    }
}

impl Ledger {
    /// The state of a new cluster.
    pub fn new(cluster_id: [u8; 16]) -> Self {
        let meta = Meta { cluster_id, version: FIRST_VERSION, ..Meta::default() };
        let mut ledger = Self::empty(meta);
        ledger.namespaces.change_or_make(namespace::DEFAULT.into());
        ledger.meta_dirty = true;
        ledger
    }

    pub(crate) fn empty(meta: Meta) -> Self {
        Self {
            meta,
            namespaces: Namespaces::default(),
            runs: Runs::default(),
            workers: Workers::default(),
            unreported_starts: SuspectStarts::default(),
            clients: Clients::default(),
            deadlines: Deadlines::default(),
            tally: Tally::default(),
            index: Eligibility::default(),
            run_lists: RunLists::default(),
            turn_changes: TurnChanges::default(),
            cordon_ends: CordonEnds::default(),
            incident_slots: IncidentSlots::default(),
            stores: Stores::default(),
            jobs: Jobs::default(),
            datasets: Datasets::default(),
            tokens: Tokens::default(),
            api_keys: ApiKeys::default(),
            revocations: Revocations::default(),
            members: MemberReports::default(),
            settings: ClusterSettings::default(),
            api_files: ApiFiles::default(),
            batches: Batches::default(),
            meta_dirty: false,
            digest_request: None,
            events: Events::default(),
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
}

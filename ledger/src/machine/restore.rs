//! Starts a new cluster from the state of an old one.
//!
//! *Invariant:* the result depends on the old state and the new id alone, so that every member of the new cluster
//! computes the same state by itself. The new cluster accepts no right of the old one: no session, lease, incarnation,
//! join token, API key or late result. Rows that ran are pending; decided rows stay decided, and runs, stores, datasets,
//! checkpoints, files, uploads, batches, revocations of certificates and settings stay.
//!
//! Absent: a command for it. The new cluster's log begins after its state, and its indexes continue, so
//! that no id of the old cluster is ever made again.

use crate::fleet::worker::SessionEnd;
use crate::identity::api_keys::ApiKeys;
use crate::identity::client::Clients;
use crate::identity::member::MemberReports;
use crate::identity::token::Tokens;
use crate::kernel::id::{CoordEpoch, SessionId};
use crate::machine::apply::Context;
use crate::machine::event::Emitter;
use crate::machine::ledger::{EntryId, Ledger};

/// The most ancestor clusters that a restored cluster lists; the oldest are dropped.
pub const ANCESTORS_MAX: usize = 16;

impl Ledger {
    /// This state as the first one of the cluster `cluster_id`. `wall_ms` is the time of the state, informational only.
    pub fn restored(mut self, cluster_id: [u8; 16], wall_ms: u64) -> Self {
        let ctx = Context::outside(self.meta.applied, wall_ms);
        for session in self.workers.sessions() {
            self.end_session(&ctx, session, SessionEnd::Lost);
        }
        self.settle_turns();
        self.settle_indexes();
        self.runs.end_lapsed();
        self.tokens = Tokens::default();
        self.api_keys = ApiKeys::default();
        self.members = MemberReports::default();
        self.batches.forget_owners();
        self.clients = Clients::default();
        let incarnations: Vec<SessionId> = self.jobs.incarnations().collect();
        for incarnation in incarnations {
            self.lose_participant(&ctx, incarnation, None);
        }
        let out = &mut Emitter::new(&ctx, &mut self.events);
        self.jobs.lose_all("its cluster was restored", out);
        let meta = &mut self.meta;
        meta.ancestors.push(std::mem::replace(&mut meta.cluster_id, cluster_id));
        let over = meta.ancestors.len().saturating_sub(ANCESTORS_MAX);
        meta.ancestors.drain(..over);
        // The terms of the new cluster begin with 1, as those of every cluster.
        meta.epoch = CoordEpoch(0);
        meta.applied = EntryId { term: 0, ..meta.applied };
        let mut hasher = blake3::Hasher::new();
        meta.chain = *hasher.update(&meta.chain).update(&cluster_id).finalize().as_bytes();
        meta.chain_marks.clear();
        self.events.clear();
        self.digest_request = None;
        // It has no image yet, so the first image is written as a whole.
        self.meta_dirty = false;
        self.runs.forget_dirty();
        self.settings.forget_dirty();
        self.namespaces.forget_dirty();
        self.workers.forget_dirty();
        self.unreported_starts.forget_dirty();
        self.revocations.forget_dirty();
        self.stores.forget_dirty();
        self.jobs.forget_dirty();
        self.datasets.forget_dirty();
        self.api_files.forget_dirty();
        self.batches.forget_dirty();
        self
    }

    /// The clusters that this one was restored from, the last one last.
    pub fn ancestors(&self) -> &[[u8; 16]] {
        &self.meta.ancestors
    }
}

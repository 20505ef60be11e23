//! The namespace rule: a caller that may use only some namespaces changes only their objects, and a worker decides and
//! holds only rows of runs of its own namespace.
//!
//! *Invariant:* from [`NAMESPACES_VERSION`] on the ledger refuses everything else, before the operation changes
//! anything. Each kind of operation says what it is about (`Operation::subject`), and a kind without an answer does not
//! compile. So no handler can forget the rule. Below that version the coordinator alone checks it, and the ledger
//! applies every operation as builds of version 3 do.
//! A late result may come from a session that has ended meanwhile. The ledger does not know the namespace of such a
//! worker, so the leader gives the operations of an exchange the namespace of the worker as their scope.
//! Absent: roles, which methods decide before they decode a request, and reads.

use crate::kernel::id::{RunNo, SessionId};
use crate::kernel::reply::{RefusedRows, Rejection};
use crate::machine::command::{HeldRows, OpKind, Scope};
use crate::machine::ledger::Ledger;
use crate::machine::operation::Subject;
use crate::machine::version_gate::NAMESPACES_VERSION;

impl Ledger {
    /// Refuses an operation about anything outside of its caller's scope. An object that does not exist belongs to no
    /// namespace: the operation refuses it itself.
    pub(crate) fn check_scope(&self, scope: &Scope, kind: &OpKind) -> Result<(), Rejection> {
        let Scope::Namespaces(allowed) = scope else { return Ok(()) };
        if self.meta.version < NAMESPACES_VERSION {
            return Ok(());
        }
        match kind.subject(self) {
            Subject::Namespace(name) => match allowed.iter().any(|allowed| allowed == name) {
                true => Ok(()),
                false => Err(Rejection::NamespaceDenied(name.to_owned())),
            },
            Subject::Cluster => Err(Rejection::ClusterDenied),
            Subject::Nothing => Ok(()),
        }
    }

    /// What an operation on a run is about.
    pub(crate) fn subject_of_run(&self, no: RunNo) -> Subject<'_> {
        self.run_namespace(no).map_or(Subject::Nothing, Subject::Namespace)
    }

    /// What an operation on a worker, or by one, is about.
    pub(crate) fn subject_of_worker(&self, session: SessionId) -> Subject<'_> {
        let worker = self.workers.get(&session);
        worker.map_or(Subject::Nothing, |worker| Subject::Namespace(worker.namespace()))
    }

    /// What an operation of a participant of a job is about.
    pub(crate) fn subject_of_participant(&self, incarnation: SessionId) -> Subject<'_> {
        let found = self.jobs.by_incarnation(incarnation);
        let job = found.and_then(|(no, _)| self.jobs.get(*no));
        job.map_or(Subject::Nothing, |job| Subject::Namespace(&job.head.name.namespace))
    }

    /// Whether a run belongs to another namespace than `namespace`.
    pub(crate) fn is_foreign_to(&self, namespace: &str, run: RunNo) -> bool {
        self.meta.version >= NAMESPACES_VERSION
            && self.run_namespace(run).is_some_and(|of_run| of_run != namespace)
    }

    /// Whether a run belongs to another namespace than a worker. False if the session has ended: then only the scope of
    /// the operation tells.
    pub(crate) fn is_foreign(&self, session: SessionId, run: RunNo) -> bool {
        let worker = self.workers.get(&session);
        worker.is_some_and(|worker| self.is_foreign_to(worker.namespace(), run))
    }

    /// The rows of `held` that a worker of `namespace` may not decide, because the run is of another namespace, or
    /// because the attempt has lost them.
    pub(crate) fn lost_by_worker(&self, namespace: &str, held: &HeldRows) -> Option<HeldRows> {
        match self.is_foreign_to(namespace, held.run) {
            true => Some(held.clone()).filter(|held| !held.rows.is_empty()),
            false => self.lost_of(held),
        }
    }
}

/// Refuses a worker's report about rows of a run of another namespace, as one of a stale attempt: it does not say
/// whether the attempt exists.
pub(crate) fn refuse_foreign(no: RunNo, sets: &[HeldRows]) -> Vec<RefusedRows> {
    let refused = sets.iter().map(|set| RefusedRows {
        run: no,
        attempt: set.attempt,
        rows: set.rows.clone(),
        why: Rejection::AttemptStale,
    });
    refused.collect()
}

#[cfg(test)]
mod tests;

//! Runs that cannot move, and why, for `Cluster/Status`.
//!
//! *Invariant:* the ledger is looked at no more than once a second for it, however many ask: the look takes time in proportion
//! to the runs. A caller sees the runs of the namespaces in its certificate, and the first [`SHOWN_MAX`] of them.

use parking_lot::Mutex;
use rollout_ledger::Ledger;
use rollout_proto::{Identity, v1};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs in one answer.
const SHOWN_MAX: usize = 32;
/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);

/// The latest look.
#[derive(Default)]
pub(crate) struct StuckRuns {
    latest: Mutex<Option<(Instant, Arc<[v1::StuckRun]>)>>,
    /// Held by the one who looks.
    looking: Mutex<()>,
}

impl StuckRuns {
    /// Those that `identity` may see, and how many more there are.
    pub(crate) fn seen_by(
        &self,
        identity: &Identity,
        look: impl FnOnce() -> Arc<[v1::StuckRun]>,
    ) -> (Vec<v1::StuckRun>, u32) {
        let (at, mut all) =
            self.latest.lock().clone().map_or((None, Arc::default()), |(at, all)| (Some(at), all));
        // Nobody waits for another one's look: what was seen last is the answer meanwhile.
        if at.is_none_or(|at: Instant| at.elapsed() >= FRESH)
            && let Some(_looking) = self.looking.try_lock()
        {
            all = look();
            *self.latest.lock() = Some((Instant::now(), all.clone()));
        }
        let mut mine = all.iter().filter(|run| identity.allows_namespace(&run.namespace));
        let shown: Vec<v1::StuckRun> = mine.by_ref().take(SHOWN_MAX).cloned().collect();
        (shown, mine.count().try_into().unwrap_or(u32::MAX))
    }
}

/// All of a ledger, alarms first.
pub(crate) fn all(ledger: &Ledger) -> Arc<[v1::StuckRun]> {
    let out = |run: rollout_ledger::StuckRun| v1::StuckRun {
        namespace: run.namespace,
        name: run.name,
        paused: run.paused,
        why: run.why,
        pending: run.pending,
        at_cordon_limit: run.at_cordon_limit,
    };
    alarms_first(ledger.stuck_runs().into_iter().map(out).collect()).into()
}

/// An answer has room for few runs, and those that a user paused must not push out the others.
fn alarms_first(mut runs: Vec<v1::StuckRun>) -> Vec<v1::StuckRun> {
    runs.sort_by_key(|run| (!run.at_cordon_limit, run.paused));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::Role;
    use std::cell::Cell;

    #[test]
    fn runs_that_a_user_paused_come_last() {
        let run = |name: &str, paused, at_cordon_limit| v1::StuckRun {
            name: name.into(),
            paused,
            at_cordon_limit,
            ..Default::default()
        };
        let runs = (0..SHOWN_MAX).map(|_| run("by a user", true, false));
        let others = [run("stuck", false, false), run("at the limit", true, true)];
        let told = alarms_first(runs.chain(others).collect());
        let names: Vec<&str> = told.iter().take(3).map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["at the limit", "stuck", "by a user"]);
    }

    #[test]
    fn a_caller_sees_its_namespaces_and_the_ledger_is_looked_at_once_a_second() {
        let run = |namespace: &str, n: usize| v1::StuckRun {
            namespace: namespace.into(),
            name: format!("r{n}"),
            ..Default::default()
        };
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            (0..40).map(|n| run("a", n)).chain([run("b", 0)]).collect()
        };
        let stuck = StuckRuns::default();
        let of = |namespaces: &[&str]| {
            let namespaces = namespaces.iter().map(|n| (*n).to_owned()).collect();
            let identity = Identity::new(Role::Viewer, "ann", namespaces).unwrap();
            let (shown, more) = stuck.seen_by(&identity, look);
            (shown.len(), more)
        };
        assert_eq!(of(&[]), (SHOWN_MAX, 9));
        assert_eq!(of(&["b"]), (1, 0));
        assert_eq!(of(&["c"]), (0, 0));
        assert_eq!(looks.get(), 1);
    }
}

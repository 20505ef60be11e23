//! Runs that cannot make progress, and why, for `Cluster/Status`.
//!
//! *Invariant:* the ledger is scanned at most once a second for this, however many callers there are, because a scan
//! takes time in proportion to the runs. The scan behind an answer ended at most a second ago: if the latest one is
//! older, one caller scans and the others wait for it. The second starts at the end of a scan. Otherwise, if scans took
//! longer than a second, each caller would scan, one after another. A caller sees the runs of the namespaces in its
//! certificate, and only the first [`SHOWN_MAX`] of them.

use rollout_ledger::Ledger;
use rollout_proto::{Identity, v1};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Runs in one answer.
const SHOWN_MAX: usize = 32;
/// The greatest age of an answer.
const FRESH: Duration = Duration::from_secs(1);

/// The result of a scan, and when it ended.
type ScanResult = (Instant, Arc<[v1::StuckRun]>);

/// The latest scan.
#[derive(Default)]
pub(crate) struct StuckRuns {
    /// Locked during a scan.
    latest: Mutex<Option<ScanResult>>,
}

impl StuckRuns {
    /// The runs that `identity` may see, and how many more there are.
    pub(crate) async fn seen_by(
        &self,
        identity: &Identity,
        look: impl FnOnce() -> Arc<[v1::StuckRun]>,
    ) -> (Vec<v1::StuckRun>, u32) {
        let all = self.fresh(look).await;
        let mut mine = all.iter().filter(|run| identity.allows_namespace(&run.namespace));
        let shown: Vec<v1::StuckRun> = mine.by_ref().take(SHOWN_MAX).cloned().collect();
        (shown, mine.count().try_into().unwrap_or(u32::MAX))
    }

    /// Waits no longer than a scan takes.
    async fn fresh(&self, look: impl FnOnce() -> Arc<[v1::StuckRun]>) -> Arc<[v1::StuckRun]> {
        let mut latest = self.latest.lock().await;
        if let Some((at, all)) = &*latest
            && at.elapsed() < FRESH
        {
            return all.clone();
        }
        let all = look();
        *latest = Some((Instant::now(), all.clone()));
        all
    }
}

/// All stuck runs of a ledger, alarms first.
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

/// An answer has room for few runs, and those that a user paused must not displace the others.
fn alarms_first(mut runs: Vec<v1::StuckRun>) -> Vec<v1::StuckRun> {
    runs.sort_by_key(|run| (!run.at_cordon_limit, run.paused));
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use rollout_proto::Role;
    use std::cell::Cell;
    use std::pin::pin;

    fn run(namespace: &str, n: usize) -> v1::StuckRun {
        v1::StuckRun { namespace: namespace.into(), name: format!("r{n}"), ..Default::default() }
    }

    fn viewer(namespaces: &[&str]) -> Identity {
        let namespaces = namespaces.iter().map(|n| (*n).to_owned()).collect();
        Identity::new(Role::Viewer, "ann", namespaces).unwrap()
    }

    #[test]
    fn runs_that_a_user_paused_come_last() {
        let paused_run = |name: &str, paused, at_cordon_limit| v1::StuckRun {
            name: name.into(),
            paused,
            at_cordon_limit,
            ..Default::default()
        };
        let runs = (0..SHOWN_MAX).map(|_| paused_run("by a user", true, false));
        let others = [paused_run("stuck", false, false), paused_run("at the limit", true, true)];
        let told = alarms_first(runs.chain(others).collect());
        let names: Vec<&str> = told.iter().take(3).map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["at the limit", "stuck", "by a user"]);
    }

    #[tokio::test]
    async fn a_caller_sees_its_namespaces_and_the_ledger_is_scanned_once_a_second() {
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            (0..40).map(|n| run("a", n)).chain([run("b", 0)]).collect()
        };
        let stuck = StuckRuns::default();
        let cases: [(&[&str], (usize, u32)); 3] =
            [(&[], (SHOWN_MAX, 9)), (&["b"], (1, 0)), (&["c"], (0, 0))];
        for (namespaces, seen) in cases {
            let (shown, more) = stuck.seen_by(&viewer(namespaces), look).await;
            assert_eq!((shown.len(), more), seen, "{namespaces:?}");
        }
        assert_eq!(looks.get(), 1);
    }

    #[tokio::test]
    async fn a_scan_longer_than_the_greatest_age_also_serves_the_next_caller() {
        let looks = Cell::new(0);
        let look = || -> Arc<[v1::StuckRun]> {
            looks.set(looks.get() + 1);
            let begun = Instant::now();
            while begun.elapsed() < FRESH {
                std::thread::yield_now();
            }
            Arc::from([run("a", looks.get())])
        };
        let stuck = StuckRuns::default();
        for _ in 0..2 {
            assert_eq!(stuck.seen_by(&viewer(&[]), look).await.0, [run("a", 1)]);
        }
        assert_eq!(looks.get(), 1);
    }

    #[tokio::test]
    async fn a_caller_waits_for_a_scan_in_progress_and_takes_no_older_one() {
        let old = Instant::now().checked_sub(2 * FRESH).expect("the host runs for seconds");
        let nothing = || -> Arc<[v1::StuckRun]> { Arc::default() };
        for before in [None, Some((old, nothing()))] {
            let stuck = StuckRuns { latest: Mutex::new(before) };
            let identity = viewer(&[]);
            let mut under_way = stuck.latest.lock().await;
            let mut second = pin!(stuck.seen_by(&identity, || panic!("another one looks")));
            assert!(poll!(&mut second).is_pending(), "it has no answer yet");
            *under_way = Some((Instant::now(), Arc::from([run("a", 1)])));
            drop(under_way);
            assert_eq!(second.await.0, [run("a", 1)]);
        }
        let stuck = StuckRuns { latest: Mutex::new(Some((old, nothing()))) };
        let seen = stuck.seen_by(&viewer(&[]), || Arc::from([run("a", 2)])).await;
        assert_eq!(seen.0, [run("a", 2)], "without a scan in progress, the caller scans");
    }
}

//! What a member says of itself, and of the ledger as far as it has applied it, whenever it is scraped.
//!
//! *Invariant:* the number of series has a bound: of names that users choose, models alone are labels, and of these at
//! most [`POOLS_MAX`]; what is left of them is told together. A pool that is gone is told as empty once it was told.
//! Absent on purpose: runs, rows, sessions and workers as labels; `rolloutctl` tells of those.

use crate::grpc::Shared;
use crate::ledger_read::ReadLedger;
use metrics::{counter, gauge};
use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use rollout_ledger::view::{Pool, WorkerState};
use rollout_raft::{DiskRoom, Space};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

/// Models that are told apart.
const POOLS_MAX: usize = 64;
/// What the models beyond that are told as.
const OTHER: &str = "other";

/// The models that were told before.
#[derive(Default)]
pub(crate) struct Gauges {
    told: Mutex<BTreeSet<String>>,
}

/// Everything that the member counts, as one page.
pub(crate) struct MetricsPage {
    gauges: Gauges,
    handle: PrometheusHandle,
}

impl MetricsPage {
    pub(crate) fn new(handle: PrometheusHandle) -> Self {
        begin_counting();
        Self { gauges: Gauges::default(), handle }
    }

    /// The page as of now.
    pub(crate) fn render(&self, shared: &Shared) -> String {
        self.gauges.set(shared);
        self.handle.render()
    }
}

/// A counter that appears with its first event has not grown for an alert: those that one event is worth an alert of are
/// there before.
fn begin_counting() {
    counter!("rollout_audit_write_failures_total").increment(0);
    counter!("rollout_webhooks_total", "outcome" => "given_up").increment(0);
}

impl Gauges {
    /// Sets every gauge to what holds now.
    pub(crate) fn set(&self, shared: &Shared) {
        consensus(shared);
        storage(shared);
        let (workers, runs, pools) = shared.node.ledger(|ledger| {
            let mut workers = [0_u32; 3];
            for state in ledger.worker_sessions().into_iter().flat_map(|id| ledger.worker_state(id))
            {
                match state {
                    WorkerState::Ready => workers[0] += 1,
                    WorkerState::Suspect { .. } => workers[1] += 1,
                    WorkerState::Draining => workers[2] += 1,
                }
            }
            (workers, ledger.run_states(), ledger.pools())
        });
        for (state, count) in ["ready", "suspect", "draining"].into_iter().zip(workers) {
            gauge!("rollout_workers", "state" => state).set(f64::from(count));
        }
        let (running, paused, ended) = runs;
        for (state, count) in [("running", running), ("paused", paused), ("ended", ended)] {
            gauge!("rollout_runs", "state" => state).set(f64::from(count));
        }
        self.pools(fold(pools), shared.config.autoscale.rows_per_slot);
    }

    fn pools(&self, pools: BTreeMap<String, Pool>, rows_per_slot: u64) {
        let mut told = self.told.lock();
        let gone: Vec<String> = told.iter().filter(|m| !pools.contains_key(*m)).cloned().collect();
        let empty = gone.into_iter().map(|model| (model, Pool::default()));
        for (model, pool) in pools.clone().into_iter().chain(empty) {
            let set = |name: &'static str, value: u64| {
                gauge!(name, "model" => model.clone()).set(value as f64);
            };
            set("rollout_pool_rows_pending", pool.pending);
            set("rollout_pool_rows_running", pool.running);
            set("rollout_pool_slots", pool.slots);
            set("rollout_pool_slots_idle", pool.idle);
            set("rollout_pool_desired_slots", desired_slots(&pool, rows_per_slot));
        }
        // What is empty now has been told so, and what was told before and is no more among the first is forgotten.
        *told = pools.into_keys().collect();
    }
}

/// One slot for so many rows to do, begun ones included. What runs counts: its slots are not to be taken away.
fn desired_slots(pool: &Pool, rows_per_slot: u64) -> u64 {
    (pool.pending + pool.running).div_ceil(rows_per_slot.max(1))
}

/// The pools with most rows, and all others as one.
fn fold(pools: BTreeMap<String, Pool>) -> BTreeMap<String, Pool> {
    if pools.len() <= POOLS_MAX {
        return pools;
    }
    let mut all: Vec<(String, Pool)> = pools.into_iter().collect();
    all.sort_by_key(|(_, pool)| std::cmp::Reverse(pool.pending + pool.running));
    let rest = all.split_off(POOLS_MAX - 1);
    let mut kept: BTreeMap<String, Pool> = all.into_iter().collect();
    let other = kept.entry(OTHER.to_owned()).or_default();
    for (_, pool) in rest {
        other.pending += pool.pending;
        other.running += pool.running;
        other.slots += pool.slots;
        other.idle += pool.idle;
    }
    kept
}

fn consensus(shared: &Shared) {
    let status = shared.node.status();
    let yes = |is: bool| f64::from(u8::from(is));
    gauge!("rollout_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    gauge!("rollout_raft_is_leader").set(yes(shared.leading().is_ok()));
    let heard = shared.node.heard_leader().is_some();
    gauge!("rollout_raft_has_leader").set(yes(heard));
    gauge!("rollout_raft_term").set(status.term as f64);
    gauge!("rollout_raft_applied_index").set(status.applied.unwrap_or(0) as f64);
    let voters = shared.node.members().iter().filter(|(_, votes)| *votes).count();
    gauge!("rollout_raft_voters").set(voters as f64);
    counter!("rollout_raft_snapshots_installed_total").absolute(status.snapshots_installed);
    let cert = shared.certificate_times();
    gauge!("rollout_tls_certificate_expiry_timestamp_seconds").set(cert.expires as f64);
    gauge!("rollout_tls_certificate_renewal_timestamp_seconds").set(cert.renewal as f64);
    let issuer = shared.issuer_times();
    gauge!("rollout_issuer_certificate_expiry_timestamp_seconds").set(issuer.expires as f64);
    gauge!("rollout_issuer_certificate_renewal_timestamp_seconds").set(issuer.renewal as f64);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // One that waits to be made part of a cluster misses no leader.
    let led = heard || shared.node.is_waiting();
    let seen = [
        ("awaiting_replace", shared.node.awaits_replacement()),
        ("cert_reload_failed", shared.tls.refused().is_some()),
    ];
    let [cert_expiring, cert_expired] = cert.alarms(now);
    let [issuer_expiring, issuer_expired] = issuer.alarms(now);
    let dated = [
        ("cert_expiring", cert_expiring),
        ("cert_expired", cert_expired),
        ("issuer_expiring", issuer_expiring),
        ("issuer_expired", issuer_expired),
    ];
    let judged = [("no_leader", !led)].into_iter().chain(disk_alarms(shared.node.disk_room()));
    for (kind, is) in judged.chain(dated).chain(seen) {
        gauge!("rollout_alarm", "kind" => kind).set(yes(is));
    }
}

fn disk_alarms(room: DiskRoom) -> [(&'static str, bool); 2] {
    [("disk_low", room == DiskRoom::Low), ("disk_full", room == DiskRoom::Full)]
}

fn storage(shared: &Shared) {
    let status = shared.node.status();
    gauge!("rollout_storage_log_bytes").set(status.log_bytes as f64);
    gauge!("rollout_storage_image_bytes").set(status.image_bytes as f64);
    gauge!("rollout_storage_write_buffer_bytes").set(status.write_buffer_bytes as f64);
    counter!("rollout_storage_fsyncs_total").absolute(status.fsyncs);
    for (quantile, us) in [("0.5", status.fsync_p50_us), ("0.99", status.fsync_p99_us)] {
        gauge!("rollout_storage_fsync_seconds", "quantile" => quantile).set(us as f64 / 1e6);
    }
    let raft = &shared.config.raft;
    disk(shared.node.disk_space(), raft.disk_low_bytes, raft.disk_reserve_bytes);
}

/// The file system of the data, and the marks that its room is judged by.
fn disk(space: Space, low_bytes: u64, reserve_bytes: u64) {
    gauge!("rollout_storage_disk_low_bytes").set(low_bytes as f64);
    gauge!("rollout_storage_disk_reserve_bytes").set(reserve_bytes as f64);
    // Where the system has not said, zero bytes would be told as a full disk.
    if space.all_bytes > 0 {
        gauge!("rollout_storage_disk_free_bytes").set(space.free_bytes as f64);
        gauge!("rollout_storage_disk_bytes").set(space.all_bytes as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metrics_exporter_prometheus::PrometheusBuilder;

    #[test]
    fn a_pool_wants_a_slot_for_so_many_rows_and_one_for_what_is_left_over() {
        let pool = |pending, running| Pool { pending, running, ..Pool::default() };
        assert_eq!(desired_slots(&pool(0, 0), 100), 0);
        assert_eq!(desired_slots(&pool(0, 1), 100), 1);
        assert_eq!(desired_slots(&pool(150, 50), 100), 2);
        assert_eq!(desired_slots(&pool(151, 50), 100), 3);
    }

    #[test]
    fn what_one_event_is_worth_an_alert_of_is_counted_before_it_happens() {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, begin_counting);
        let page = recorder.handle().render();
        assert!(page.contains("rollout_audit_write_failures_total 0\n"), "{page}");
        assert!(page.contains("rollout_webhooks_total{outcome=\"given_up\"} 0\n"), "{page}");
    }

    #[test]
    fn one_alarm_is_raised_for_a_disk_with_little_room_and_another_for_a_full_one() {
        let of = |room| -> Vec<&str> {
            disk_alarms(room).into_iter().filter(|alarm| alarm.1).map(|alarm| alarm.0).collect()
        };
        assert_eq!(of(DiskRoom::Enough), Vec::<&str>::new());
        assert_eq!(of(DiskRoom::Low), ["disk_low"]);
        assert_eq!(of(DiskRoom::Full), ["disk_full"]);
    }

    #[test]
    fn a_disk_of_which_the_system_says_nothing_is_not_told_as_a_full_one() {
        let told = |space| {
            let recorder = PrometheusBuilder::new().build_recorder();
            metrics::with_local_recorder(&recorder, || disk(space, 2000, 1000));
            recorder.handle().render()
        };
        let unknown = told(Space { free_bytes: 0, all_bytes: 0 });
        assert!(!unknown.contains("rollout_storage_disk_free_bytes"), "{unknown}");
        assert!(unknown.contains("rollout_storage_disk_low_bytes 2000\n"), "{unknown}");
        assert!(unknown.contains("rollout_storage_disk_reserve_bytes 1000\n"), "{unknown}");
        let full = told(Space { free_bytes: 0, all_bytes: 4096 });
        assert!(full.contains("rollout_storage_disk_free_bytes 0\n"), "{full}");
        assert!(full.contains("rollout_storage_disk_bytes 4096\n"), "{full}");
    }

    #[test]
    fn models_beyond_the_bound_are_told_together_and_no_row_is_left_out() {
        let pool = |n: u64| Pool { pending: n, running: 1, slots: 2, idle: 1 };
        let many: BTreeMap<String, Pool> =
            (0..100).map(|n| (format!("m{n:03}"), pool(n))).collect();
        let told = fold(many);
        assert_eq!(told.len(), POOLS_MAX);
        assert_eq!(told.values().map(|p| p.pending).sum::<u64>(), (0..100).sum::<u64>());
        assert_eq!(told["m099"], pool(99));
        assert_eq!(told[OTHER].pending, (0..37).sum::<u64>());
        assert_eq!(fold(BTreeMap::from([("m".into(), pool(1))])).len(), 1);
    }
}

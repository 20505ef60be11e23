//! The metrics page: what a member reports about itself, and about the ledger as far as it has applied it.
//!
//! *Invariant:* the number of series is bounded. Of the names that users choose, only models are labels, and of these
//! only the current ones, at most [`POOLS_MAX`](pools::POOLS_MAX).
//! Absent: runs, rows, sessions and workers as labels; `rolloutctl` shows those.

mod pools;

use crate::config::Config;
use crate::enrollment::CertificateIssuer;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::Current;
use crate::observe::certificate_times::CertificateTimes;
use metrics::{counter, gauge};
use metrics_exporter_prometheus::PrometheusHandle;
use rollout_ledger::view::Pool;
use rollout_proto::ServerTls;
use rollout_raft::{DiskRoom, Node, Space};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The member's metrics page, and what it reads.
pub(crate) struct MetricsPage {
    handle: PrometheusHandle,
    node: Node,
    current: Current,
    tls: ServerTls,
    /// The certificate issuer, if it is configured.
    issuer: Option<Arc<CertificateIssuer>>,
    disk_low_bytes: u64,
    disk_reserve_bytes: u64,
    rows_per_slot: u64,
}

impl MetricsPage {
    pub(crate) fn new(
        handle: PrometheusHandle,
        config: &Config,
        (node, current): (Node, Current),
        (tls, issuer): (ServerTls, Option<Arc<CertificateIssuer>>),
    ) -> Self {
        begin_counting();
        Self {
            handle,
            node,
            current,
            tls,
            issuer,
            disk_low_bytes: config.raft.disk_low_bytes,
            disk_reserve_bytes: config.raft.disk_reserve_bytes,
            rows_per_slot: config.autoscale.rows_per_slot,
        }
    }

    /// Renders the current page.
    pub(crate) fn render(&self) -> String {
        let pools = self.set();
        with_pools(&self.handle, pools, self.rows_per_slot)
    }

    /// Sets every gauge to its current value, and returns the pools, which have no gauges.
    fn set(&self) -> BTreeMap<String, Pool> {
        self.consensus();
        self.storage();
        let (fleet, runs, at_limit, pools) = self.node.ledger(|ledger| {
            (ledger.fleet(), ledger.run_states(), ledger.at_cordon_limit(), ledger.pools())
        });
        gauge!("rollout_alarm", "kind" => "cordon_limit").set(f64::from(u8::from(at_limit)));
        let workers =
            [("ready", fleet.ready), ("suspect", fleet.suspect), ("draining", fleet.draining)];
        for (state, count) in workers {
            gauge!("rollout_workers", "state" => state).set(f64::from(count));
        }
        let (running, paused, ended) = runs;
        for (state, count) in [("running", running), ("paused", paused), ("ended", ended)] {
            gauge!("rollout_runs", "state" => state).set(f64::from(count));
        }
        pools
    }

    fn consensus(&self) {
        let status = self.node.status();
        let leads = self.current.read().is_some() && self.node.lease_valid();
        let yes = |is: bool| f64::from(u8::from(is));
        gauge!("rollout_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        gauge!("rollout_raft_is_leader").set(yes(leads));
        let has_leader = self.node.heard_leader().is_some();
        gauge!("rollout_raft_has_leader").set(yes(has_leader));
        gauge!("rollout_raft_term").set(status.term as f64);
        gauge!("rollout_raft_applied_index").set(status.applied.unwrap_or(0) as f64);
        let voters = self.node.members().iter().filter(|(_, votes)| *votes).count();
        gauge!("rollout_raft_voters").set(voters as f64);
        counter!("rollout_raft_snapshots_installed_total").absolute(status.snapshots_installed);
        let cert = CertificateTimes::of_member(&self.tls);
        gauge!("rollout_tls_certificate_expiry_timestamp_seconds").set(cert.expires as f64);
        gauge!("rollout_tls_certificate_renewal_timestamp_seconds").set(cert.renewal as f64);
        let issuer = CertificateTimes::of_issuer(self.issuer.as_deref());
        gauge!("rollout_issuer_certificate_expiry_timestamp_seconds").set(issuer.expires as f64);
        gauge!("rollout_issuer_certificate_renewal_timestamp_seconds").set(issuer.renewal as f64);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // A member that waits to join a cluster lacks no leader.
        let led = has_leader || self.node.is_waiting();
        let seen = [
            ("awaiting_replace", self.node.awaits_replacement()),
            ("cert_reload_failed", self.tls.refused().is_some()),
        ];
        let [cert_expiring, cert_expired] = cert.alarms(now);
        let [issuer_expiring, issuer_expired] = issuer.alarms(now);
        let dated = [
            ("cert_expiring", cert_expiring),
            ("cert_expired", cert_expired),
            ("issuer_expiring", issuer_expiring),
            ("issuer_expired", issuer_expired),
        ];
        let judged = [("no_leader", !led)].into_iter().chain(disk_alarms(self.node.disk_room()));
        for (kind, is) in judged.chain(dated).chain(seen) {
            gauge!("rollout_alarm", "kind" => kind).set(yes(is));
        }
    }

    fn storage(&self) {
        let status = self.node.status();
        gauge!("rollout_storage_log_bytes").set(status.log_bytes as f64);
        gauge!("rollout_storage_image_bytes").set(status.image_bytes as f64);
        gauge!("rollout_storage_write_buffer_bytes").set(status.write_buffer_bytes as f64);
        counter!("rollout_storage_fsyncs_total").absolute(status.fsyncs);
        for (quantile, us) in [("0.5", status.fsync_p50_us), ("0.99", status.fsync_p99_us)] {
            gauge!("rollout_storage_fsync_seconds", "quantile" => quantile).set(us as f64 / 1e6);
        }
        disk(self.node.disk_space(), self.disk_low_bytes, self.disk_reserve_bytes);
    }
}

fn with_pools(
    handle: &PrometheusHandle,
    pools: BTreeMap<String, Pool>,
    rows_per_slot: u64,
) -> String {
    let mut page = handle.render();
    pools::write(&mut page, pools, rows_per_slot);
    page
}

/// Creates counters of which a single event justifies an alert. A counter that only appears with its first event would
/// not have increased.
fn begin_counting() {
    counter!("rollout_audit_write_failures_total").increment(0);
    counter!("rollout_webhooks_total", "outcome" => "given_up").increment(0);
}

fn disk_alarms(room: DiskRoom) -> [(&'static str, bool); 2] {
    [("disk_low", room == DiskRoom::Low), ("disk_full", room == DiskRoom::Full)]
}

/// The file system of the data, and the thresholds for its free space.
fn disk(space: Space, low_bytes: u64, reserve_bytes: u64) {
    gauge!("rollout_storage_disk_low_bytes").set(low_bytes as f64);
    gauge!("rollout_storage_disk_reserve_bytes").set(reserve_bytes as f64);
    // If the system reports nothing, zero bytes would look like a full disk.
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
    fn counters_that_alert_on_one_event_start_at_zero() {
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
    fn a_disk_of_unknown_size_is_not_reported_as_full() {
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

    /// The pool lines of consecutive pages.
    fn rendered(pages: impl IntoIterator<Item = BTreeMap<String, Pool>>) -> Vec<Vec<String>> {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        let of_pools = |pools| -> Vec<String> {
            let page = with_pools(&handle, pools, 100);
            page.lines().filter(|line| line.contains("{model=")).map(str::to_owned).collect()
        };
        let pages = pages.into_iter();
        metrics::with_local_recorder(&recorder, || pages.map(of_pools).collect())
    }

    fn pool(pending: u64) -> Pool {
        Pool { pending, ..Pool::default() }
    }

    #[test]
    fn models_that_are_gone_leave_no_lines() {
        let models = |round: u64| (0..64).map(move |n| (format!("m{round}-{n}"), pool(1)));
        for lines in rendered((0..200).map(|round| models(round).collect())) {
            assert_eq!(lines.len(), 5 * pools::POOLS_MAX);
        }
    }

    #[test]
    fn a_model_in_the_sum_of_the_rest_has_no_line_with_zero() {
        let few = BTreeMap::from([("m".to_owned(), pool(7))]);
        let larger = (0..100).map(|n| (format!("l{n}"), pool(1000)));
        let many: BTreeMap<String, Pool> = few.clone().into_iter().chain(larger).collect();
        let pages = rendered([few, many]);
        let of = |page: &[String], model: &str| -> Vec<String> {
            let label = format!("{{model=\"{model}\"}}");
            page.iter().filter(|line| line.contains(&label)).cloned().collect()
        };
        let desired = "rollout_pool_desired_slots{model=\"m\"} 1".to_owned();
        assert!(of(&pages[0], "m").contains(&desired), "{pages:?}");
        assert_eq!(of(&pages[1], "m"), Vec::<String>::new());
        // The 63 largest models have their own lines; this one counts with 37 others.
        let rest = "rollout_pool_rows_pending{model=\"other\"} 37007".to_owned();
        assert!(of(&pages[1], "other").contains(&rest), "{pages:?}");
    }
}

//! Health, readiness and metrics over HTTP, on loopback by default.
//!
//! `/healthz` says that the process lives and needs no quorum, so that a supervisor restarts
//! nobody for a partition. `/readyz` says whether this member serves: it leads with a valid lease,
//! or knows who leads.

use crate::grpc::Shared;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
struct Http {
    shared: Arc<Shared>,
    metrics: PrometheusHandle,
}

/// Serves until told to stop.
pub(crate) async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    metrics: PrometheusHandle,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render))
        .with_state(Http { shared, metrics });
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn ready(State(http): State<Http>) -> (StatusCode, String) {
    let node = &http.shared.node;
    if http.shared.leading().is_ok() {
        return (StatusCode::OK, "leading\n".into());
    }
    match node.leader() {
        Some(leader) if leader.name != http.shared.config.name => {
            (StatusCode::OK, format!("following {}\n", leader.name))
        }
        _ if node.is_waiting() => {
            (StatusCode::SERVICE_UNAVAILABLE, "waiting to be made part of a cluster\n".into())
        }
        _ => (StatusCode::SERVICE_UNAVAILABLE, "no leader\n".into()),
    }
}

async fn render(State(http): State<Http>) -> String {
    let status = http.shared.node.status();
    let leads = http.shared.leading().is_ok();
    metrics::gauge!("rollout_raft_is_leader").set(f64::from(u8::from(leads)));
    metrics::gauge!("rollout_raft_has_leader")
        .set(f64::from(u8::from(http.shared.node.leader().is_some())));
    metrics::gauge!("rollout_raft_term").set(status.term as f64);
    metrics::gauge!("rollout_raft_applied_index").set(status.applied.unwrap_or(0) as f64);
    metrics::gauge!("rollout_storage_log_bytes").set(status.log_bytes as f64);
    metrics::gauge!("rollout_storage_image_bytes").set(status.image_bytes as f64);
    metrics::gauge!("rollout_storage_write_buffer_bytes").set(status.write_buffer_bytes as f64);
    metrics::counter!("rollout_raft_snapshots_installed_total")
        .absolute(status.snapshots_installed);
    metrics::counter!("rollout_storage_fsyncs_total").absolute(status.fsyncs);
    http.metrics.render()
}

//! Health, readiness and metrics over HTTP, on loopback by default.
//!
//! `/healthz` says that the process lives and needs no quorum, so that a supervisor restarts
//! nobody for a partition. `/readyz` says whether this member serves: it leads with a valid lease,
//! or knows who leads.

use crate::grpc::Shared;
use crate::open_files::Bounded;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Serves until told to stop.
pub(crate) async fn serve(
    listener: Bounded,
    shared: Arc<Shared>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render))
        .with_state(shared);
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, String) {
    let (serves, text) = standing(&shared);
    let status = if serves { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, text + "\n")
}

/// Whether this member serves, and how it stands, in words.
pub(crate) fn standing(shared: &Shared) -> (bool, String) {
    if shared.leading().is_ok() {
        return (true, "leading".into());
    }
    match shared.node.leader() {
        Some(leader) if leader.name != shared.config.name => {
            (true, format!("following {}", leader.name))
        }
        _ if shared.node.awaits_replacement() => (
            false,
            "awaiting-replace: a cluster has a member here, whose data is gone; it comes back by rolloutctl member \
             replace"
                .into(),
        ),
        _ if shared.node.is_waiting() => (false, "waiting to be made part of a cluster".into()),
        _ => (false, "no leader".into()),
    }
}

async fn render(State(shared): State<Arc<Shared>>) -> String {
    shared.metrics.render(&shared)
}

//! Health, readiness and metrics over HTTP, on loopback by default.
//!
//! `/healthz` says that the process lives. It needs no quorum, so that a supervisor does not restart a member because
//! of a partition. `/readyz` says whether this member serves: it leads with a valid lease, or it knows the leader and
//! has caught up. So a rolling restart may continue once it is ready.
//!
//! *Invariant:* a connection serves one request and ends after [`OPEN_MAX`], so that no caller keeps a probe out.

use crate::grpc::Shared;
use crate::observe::open_files::Bounded;
use axum::Router;
use axum::extract::State;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use rollout_proto::LACKS_MAX;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long a connection may stay open. A probe or a scrape takes milliseconds.
pub(crate) const OPEN_MAX: Duration = Duration::from_secs(10);

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
        .layer(map_response(one_request))
        .with_state(shared);
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Closes the connection after its answer: an idle one would take the place of another, and might be cut off in its
/// next request.
async fn one_request(mut response: Response) -> Response {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, String) {
    let (serves, text) = standing(&shared);
    let status = if serves { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, text + "\n")
}

/// Whether this member serves, and its status as a text.
pub(crate) fn standing(shared: &Shared) -> (bool, String) {
    if shared.leader_state().is_ok() {
        return (true, "leading".into());
    }
    match shared.node.heard_leader() {
        Some(leader) if leader.name != shared.config.name => {
            following(&leader.name, shared.node.status().lacks)
        }
        _ if shared.node.awaits_replacement() => (
            false,
            "awaiting-replace: a cluster expects a member at this address, but its data is missing; run rolloutctl member \
             replace"
                .into(),
        ),
        _ if shared.node.is_waiting() => (false, "waiting to be made part of a cluster".into()),
        _ => (false, "no leader".into()),
    }
}

/// The status of a follower that lacks this many committed entries; `None` if it does not know how many there are.
fn following(leader: &str, lacks: Option<u64>) -> (bool, String) {
    match lacks {
        Some(lacks) if lacks <= LACKS_MAX => (true, format!("following {leader}")),
        Some(lacks) => (false, format!("catching up, {lacks} behind")),
        None => (false, format!("catching up, {leader} has not said how far it is")),
    }
}

async fn render(State(shared): State<Arc<Shared>>) -> String {
    shared.metrics.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follower_is_ready_when_it_lacks_no_more_than_a_member_that_gets_its_vote() {
        assert_eq!(following("c1", Some(LACKS_MAX)), (true, "following c1".into()));
        let behind = following("c1", Some(LACKS_MAX + 1));
        assert_eq!(behind, (false, "catching up, 257 behind".into()));
        assert!(!following("c1", None).0, "what it lacks is not known");
    }
}

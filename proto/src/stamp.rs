//! The headers in which every request tells what its sender knows: the highest coord_epoch that it has seen, and the
//! cluster id to which this epoch belongs; and the [trace](crate::trace) of the request.
//!
//! *Invariant:* epoch and cluster id travel together, because epochs of two clusters are never comparable, and the
//! epoch never decreases. A sender that knows nothing yet sends neither.
//!
//! Absent: how a member reacts to them (the coordinator's gate), and the messages of a worker's stream,
//! which carry the epoch themselves.

use std::sync::Arc;

use parking_lot::RwLock;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::{Request, Status};

use crate::error::{ErrorCode, RpcError};
use crate::trace::{self, TRACEPARENT, TraceContext};

/// The header with the epoch, in decimal.
pub const EPOCH_HEADER: &str = "rollout-coord-epoch";
/// The header with the cluster's id, 32 lower-case hex digits.
pub const CLUSTER_HEADER: &str = "rollout-cluster-id";

/// The header of a request whose sender accepts an answer that no quorum confirms: what the called member knows,
/// whether it leads or not. The answer's [header](crate::v1::ClusterHeader) has the index as of which it was read.
pub const UNCONFIRMED_HEADER: &str = "rollout-unconfirmed";

/// A request that accepts an answer that no quorum confirms.
pub fn unconfirmed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(UNCONFIRMED_HEADER, MetadataValue::from_static("1"));
    request
}

/// A channel that adds to each request what its sender knows.
pub type Channel = InterceptedService<tonic::transport::Channel, Stamp>;

/// Writes the headers. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct Stamp(Arc<RwLock<StampState>>);

#[derive(Debug, Default)]
struct StampState {
    coord_epoch: u64,
    headers: Option<(MetadataValue<Ascii>, MetadataValue<Ascii>)>,
}

impl Stamp {
    /// Sets what requests say from now on, if it is newer than before.
    pub fn update(&self, cluster_id: &str, coord_epoch: u64) {
        if cluster_id.is_empty() || coord_epoch <= self.0.read().coord_epoch {
            return;
        }
        let Ok(cluster) = MetadataValue::try_from(cluster_id) else { return };
        let mut latest = self.0.write();
        if coord_epoch > latest.coord_epoch {
            latest.coord_epoch = coord_epoch;
            latest.headers = Some((cluster, MetadataValue::from(coord_epoch)));
        }
    }

    /// Requests carry no headers until there is a new state.
    pub(crate) fn clear(&self) {
        *self.0.write() = StampState::default();
    }

    #[cfg(test)]
    pub(crate) fn epoch(&self) -> u64 {
        self.0.read().coord_epoch
    }
}

impl PartialEq for Stamp {
    fn eq(&self, other: &Self) -> bool {
        self.0.read().coord_epoch == other.0.read().coord_epoch
    }
}

impl Interceptor for Stamp {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some((cluster, epoch)) = &self.0.read().headers {
            request.metadata_mut().insert(CLUSTER_HEADER, cluster.clone());
            request.metadata_mut().insert(EPOCH_HEADER, epoch.clone());
        }
        let traced = trace::current().unwrap_or_else(TraceContext::make);
        if let Ok(value) = MetadataValue::try_from(traced.to_string()) {
            request.metadata_mut().insert(TRACEPARENT, value);
        }
        Ok(request)
    }
}

/// The sender's cluster id and epoch in a request, if it carries them.
///
/// # Errors
/// `InvalidArgument` for one without the other, or an epoch that is not a number.
pub fn sender_knows(headers: &http::HeaderMap) -> Result<Option<(&str, u64)>, RpcError> {
    let bad = |what: &str| RpcError::new(ErrorCode::InvalidArgument, what);
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    match (text(CLUSTER_HEADER), text(EPOCH_HEADER)) {
        (None, None) => Ok(None),
        (Some(cluster), Some(epoch)) if !cluster.is_empty() => {
            let epoch = epoch.parse().map_err(|_| bad("rollout-coord-epoch is not a number"))?;
            Ok(Some((cluster, epoch)))
        }
        _ => Err(bad("rollout-coord-epoch and rollout-cluster-id come together or not at all")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(stamp: &Stamp) -> http::HeaderMap {
        let request = stamp.clone().call(Request::new(())).unwrap();
        request.metadata().clone().into_headers()
    }

    #[test]
    fn a_request_says_the_highest_epoch_that_its_sender_has_seen() {
        let stamp = Stamp::default();
        assert_eq!(sender_knows(&sent(&stamp)), Ok(None));
        stamp.update("", 3);
        assert_eq!(sender_knows(&sent(&stamp)), Ok(None));
        stamp.update("c0ffee", 5);
        stamp.update("c0ffee", 4);
        assert_eq!(sender_knows(&sent(&stamp)), Ok(Some(("c0ffee", 5))));
    }

    #[tokio::test]
    async fn requests_of_one_trace_say_so_and_others_begin_their_own() {
        let stamp = Stamp::default();
        let id = |headers: http::HeaderMap| {
            TraceContext::of_headers(&headers).map(|context| context.trace_id())
        };
        let one = TraceContext::make();
        let (first, second) =
            trace::within(one, async { (id(sent(&stamp)), id(sent(&stamp))) }).await;
        let of_one = Some(one.trace_id());
        assert_eq!((&first, &second), (&of_one, &of_one));
        assert_ne!(id(sent(&stamp)), first);
        assert!(sent(&stamp).contains_key(TRACEPARENT));
    }

    #[tokio::test]
    async fn without_a_recorded_span_the_callers_own_is_passed_on() {
        let stamp = Stamp::default();
        let one = TraceContext::make();
        let headers = trace::within(one, async { sent(&stamp) }).await;
        assert_eq!(TraceContext::of_headers(&headers), Some(one));
    }

    #[test]
    fn half_a_stamp_is_refused() {
        let mut headers = http::HeaderMap::new();
        headers.insert(EPOCH_HEADER, "7".parse().unwrap());
        assert_eq!(sender_knows(&headers).unwrap_err().code, ErrorCode::InvalidArgument);
        headers.insert(CLUSTER_HEADER, "c0ffee".parse().unwrap());
        assert_eq!(sender_knows(&headers), Ok(Some(("c0ffee", 7))));
        headers.insert(EPOCH_HEADER, "-7".parse().unwrap());
        assert_eq!(sender_knows(&headers).unwrap_err().code, ErrorCode::InvalidArgument);
    }
}

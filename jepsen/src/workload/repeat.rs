//! Requests that are sent more than once under one id: how records name them, and how the cluster must answer the
//! repeats.
//!
//! *Invariant:* the cluster repeats its first answer, or says that it has forgotten the request; a refusal would
//! revoke the answer. A repeat without an answer shows nothing.

use crate::events::EventKind;
use rollout_proto::{ClientError, ErrorCode, v1};

/// The name of a request in records.
pub(super) fn request_text(id: v1::RequestId) -> String {
    format!("{}/{}", id.session, id.seq)
}

/// The record of a repeat of an answered request, if the repeat shows anything. Both answers are given as text.
pub(super) fn judged(
    what: &str,
    id: v1::RequestId,
    first: &str,
    second: Result<String, ClientError>,
) -> Option<EventKind> {
    let (same, second) = match second {
        Ok(second) => (second == first, second),
        Err(ClientError::Rpc(error)) => {
            let forgot =
                matches!(error.code, ErrorCode::SessionUnknown | ErrorCode::RequestForgotten);
            // The cluster may forget an answer, but must not decide again.
            if forgot || error.code.retryable() {
                return None;
            }
            (false, error.to_string())
        }
        Err(_) => return None,
    };
    let (what, request_id) = (what.to_owned(), request_text(id));
    Some(EventKind::Repeated { what, request_id, same, detail: format!("{first}, then {second}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::RpcError;

    #[test]
    fn a_repeat_that_is_refused_is_not_answered_the_same() {
        let id = v1::RequestId { session: 4, seq: 1, ack_upto: 0 };
        let same = |second| match judged("close", id, "done", second) {
            Some(EventKind::Repeated { request_id, same, .. }) => Some((request_id, same)),
            _ => None,
        };
        let told = |same| Some(("4/1".to_owned(), same));
        assert_eq!(same(Ok("done".to_owned())), told(true));
        assert_eq!(same(Ok("other".to_owned())), told(false));
        let refused = |code| same(Err(ClientError::Rpc(RpcError::new(code, "no"))));
        for code in [ErrorCode::RunEnded, ErrorCode::RendezvousClosed, ErrorCode::ShardConflict] {
            assert_eq!(refused(code), told(false), "{code}");
        }
        for code in
            [ErrorCode::SessionUnknown, ErrorCode::RequestForgotten, ErrorCode::OutcomeUnknown]
        {
            assert_eq!(refused(code), None, "{code}");
        }
        assert_eq!(same(Err(ClientError::NoEndpoints)), None);
    }
}

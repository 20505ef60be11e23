//! Requests that are sent more than once under one id: how records name them, and what their repeats have to be answered.
//!
//! *Invariant:* what was answered once is answered so again, or the cluster says that it has forgotten; to refuse it is to
//! take it back. A repeat that nobody answered shows nothing.

use crate::events::What;
use rollout_proto::{ClientError, ErrorCode, v1};

/// A request, as records name it.
pub(super) fn named(id: v1::RequestId) -> String {
    format!("{}/{}", id.session, id.seq)
}

/// What the repeat of an answered request shows, if it shows anything. Both answers are told in words.
pub(super) fn judged(
    what: &str,
    id: v1::RequestId,
    first: &str,
    second: Result<String, ClientError>,
) -> Option<What> {
    let (same, second) = match second {
        Ok(second) => (second == first, second),
        Err(ClientError::Rpc(error)) => {
            let forgot =
                matches!(error.code, ErrorCode::SessionUnknown | ErrorCode::RequestForgotten);
            // The cluster may forget; to decide anew is what it may not.
            if forgot || error.code.retryable() {
                return None;
            }
            (false, error.to_string())
        }
        Err(_) => return None,
    };
    let (what, request_id) = (what.to_owned(), named(id));
    Some(What::Repeated { what, request_id, same, detail: format!("{first}, then {second}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::RpcError;

    #[test]
    fn a_repeat_that_is_refused_is_not_answered_the_same() {
        let id = v1::RequestId { session: 4, seq: 1, ack_upto: 0 };
        let same = |second| match judged("close", id, "done", second) {
            Some(What::Repeated { request_id, same, .. }) => Some((request_id, same)),
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

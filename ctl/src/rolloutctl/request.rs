//! The number of a request: under it the cluster executes the request once, however often it arrives.
//!
//! Invariant: an error that leaves a request's outcome unknown shows its number, and `--request-id` repeats it.
//! Absent: idempotent requests; they have no number.

use std::fmt;
use std::str::FromStr;

use rollout_proto::{Channel, Client, ClientError, HasHeader, PendingRequest, v1};
use tonic::{Response, Status};

/// A request as users write it: the client's session, and the request's number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestName {
    session: u64,
    seq: u64,
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.session, self.seq)
    }
}

impl FromStr for RequestName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once('.').and_then(|(session, seq)| {
            Some(Self { session: session.parse().ok()?, seq: seq.parse().ok()? })
        });
        let good = numbers.filter(|name| name.session > 0 && name.seq > 0);
        good.ok_or_else(|| {
            format!("{text:?} is not a SESSION.SEQ as an earlier command printed it")
        })
    }
}

/// A request with its number: a new one, or that of an earlier command.
pub(crate) struct Numbered {
    name: RequestName,
    // Kept until the answer arrives; dropping it releases the number.
    _pending: Option<PendingRequest>,
}

impl Numbered {
    /// The given number, or a new one in a new session.
    pub(crate) async fn new(
        client: &Client,
        again: Option<RequestName>,
    ) -> Result<Self, ClientError> {
        if let Some(name) = again {
            return Ok(Self { name, _pending: None });
        }
        let pending = client.open_session("rolloutctl").await?.request();
        let name = RequestName { session: pending.id().session, seq: pending.id().seq };
        Ok(Self { name, _pending: Some(pending) })
    }

    /// The value for the request's field.
    pub(crate) fn id(&self) -> v1::RequestId {
        let RequestName { session, seq } = self.name;
        v1::RequestId { session, seq, ack_upto: seq - 1 }
    }

    /// The form that users write.
    pub(crate) fn name(&self) -> RequestName {
        self.name
    }

    /// The error of this request, which says how to repeat it.
    pub(crate) fn failed(&self, source: ClientError) -> Repeatable {
        Repeatable { name: self.name, source }
    }
}

/// Sends the leader the request that `request` makes from its number: the one in `again`, or a new one. `what` names
/// the call in errors. An error says how to repeat the request.
pub(in crate::rolloutctl) async fn numbered<T, R, Fut>(
    client: &Client,
    what: &'static str,
    again: Option<RequestName>,
    request: impl FnOnce(v1::RequestId) -> R,
    send: impl Fn(Channel, R) -> Fut,
) -> anyhow::Result<T>
where
    T: HasHeader,
    R: Clone,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let number = Numbered::new(client, again).await?;
    let request = request(number.id());
    let answer = client.with_leader(what, |channel| send(channel, request.clone())).await;
    answer.map_err(|error| number.failed(error).into())
}

/// A request that failed, or that may have.
#[derive(Debug, thiserror::Error)]
#[error("{source}")]
pub(crate) struct Repeatable {
    pub(super) name: RequestName,
    source: ClientError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_named_by_its_session_and_its_number_there() {
        let name: RequestName = "8842.1".parse().unwrap();
        assert_eq!((name.session, name.seq), (8842, 1));
        assert_eq!(name.to_string(), "8842.1");
        for bad in ["", "8842", "8842.", "0.1", "1.0", "a.b", "1.2.3"] {
            assert!(bad.parse::<RequestName>().is_err(), "{bad}");
        }
    }
}

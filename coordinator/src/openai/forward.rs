//! Owns: how the API reaches the leader, which may be this member.
//!
//! Invariant: a read is confirmed by the leader after the caller came, and a change is in this member's ledger before
//! the caller gets its answer, so the caller reads its own changes. A lost answer or a new leader does not fail a
//! request: it is sent again, for [`WITHIN`] in all. That is safe because each operation is idempotent by the id of its
//! object.
//! Absent: what the leader does with it (`grpc::forward`).

use crate::grpc::{FORWARD_OP_BYTES_MAX, Shared, revoked_certificates};
use crate::leader::caller;
use crate::leader::proposer::LogPosition;
use crate::leader::reject;
use crate::observe::log_position;
use crate::openai::error::ApiError;
use crate::openai::shared_read::SharedRead;
use crate::openai::state::Cluster;
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rollout_ledger::{Ledger, Op, OpKind, Rejection, Reply};
use rollout_proto::v1::forward_client::ForwardClient;
use rollout_proto::{
    Channel, ChannelOptions, ClientTls, DialMap, Endpoint, ErrorCode, Identity, RpcError, Stamp,
    TlsError, channel, services, v1,
};
use rollout_raft::MemberRecord;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long a request may take at the leader, with all repeats: longer than an election and a slow fsync.
const WITHIN: Duration = Duration::from_secs(3);
/// How long one try may take before it is made again.
const TRY_WITHIN: Duration = Duration::from_millis(1500);
/// The pause before a repeat, unless a new leader is known earlier.
const PAUSE: Duration = Duration::from_millis(50);
/// Limit for reaching the leader's port, and then for the handshake.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// The way to the leader.
pub(crate) struct Forwarding {
    shared: Arc<Shared>,
    tls: ClientTls,
    /// What this member knows of the cluster, so that a leader of another cluster refuses its requests.
    stamp: Stamp,
    reads: SharedRead,
    /// The client for the leader at this name and address.
    leader: Mutex<Option<(String, String, ForwardClient<Channel>)>>,
}

impl Forwarding {
    /// # Errors
    /// The certificate files cannot be used.
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self, TlsError> {
        let tls = ClientTls::refusing(&shared.config.security, shared.revocations.clone())?;
        let (stamp, reads, leader) = (Stamp::default(), SharedRead::default(), Mutex::new(None));
        Ok(Self { shared, tls, stamp, reads, leader })
    }

    /// The client for the leader; `None` if this member leads.
    fn leader(&self) -> Result<Option<ForwardClient<Channel>>, RpcError> {
        let here = match self.shared.leader_state() {
            Ok(_) => return Ok(None),
            Err(error) => error,
        };
        match self.shared.node.leader() {
            Some(leader) if leader.name != self.shared.config.name => self.client(leader).map(Some),
            // Unknown, or this member, whose epoch is not open yet.
            _ => Err(here),
        }
    }

    fn client(&self, leader: MemberRecord) -> Result<ForwardClient<Channel>, RpcError> {
        let epoch = self.shared.node.with_ledger(|l| l.epoch().0).unwrap_or_default();
        self.stamp.update(&self.shared.cluster_id(), epoch);
        let mut cached = self.leader.lock();
        if let Some((name, addr, client)) = &*cached
            && (name, addr) == (&leader.name, &leader.client_addr)
        {
            return Ok(client.clone());
        }
        let failed = |error: rollout_proto::EndpointError| {
            RpcError::new(ErrorCode::ConnectFailed, error.to_string())
        };
        let endpoint = Endpoint::with_name(&leader.name, &leader.client_addr).map_err(failed)?;
        let options = ChannelOptions {
            connect_timeout: CONNECT_WITHIN,
            handshake_timeout: CONNECT_WITHIN,
            recognize_tls: false,
            ..ChannelOptions::default()
        };
        // A dial map redirects the ports for members only.
        let channel = channel(&endpoint, &self.tls, &DialMap::default(), &options);
        let channel = Channel::new(channel.map_err(failed)?, self.stamp.clone());
        let client = services::forward(channel);
        *cached = Some((leader.name, leader.client_addr, client.clone()));
        Ok(client)
    }

    async fn try_read(&self) -> Result<(), RpcError> {
        let Some(mut leader) = self.leader()? else {
            return self.shared.reading().await.map(drop);
        };
        let ask = async {
            let answer = leader.read_index(v1::ReadIndexRequest {}).await;
            Ok(answer.map_err(|status| RpcError::from_status(&status))?.into_inner().index)
        };
        let index = self.reads.index(ask).await?;
        self.applied(index).await
    }

    /// Waits until this member has applied an index that the leader has applied.
    async fn applied(&self, index: u64) -> Result<(), RpcError> {
        if self.shared.node.applied(index, TRY_WITHIN).await {
            return Ok(());
        }
        let message = format!("this member has not applied index {index} in time");
        Err(RpcError::new(ErrorCode::TimedOut, message))
    }

    /// `bytes` is the operation in its encoding.
    async fn try_apply(
        &self,
        who: &Identity,
        (op, bytes): (&OpKind, &Bytes),
    ) -> Result<(u64, Reply), RpcError> {
        let (index, reply) = match self.leader()? {
            None => {
                let applied = self.shared.reply_to(Op::from(op.clone()));
                let (_, at, reply) = caller::serving(who.clone(), applied).await?;
                (at.index, reply)
            }
            Some(leader) => self.apply_there(leader, who, bytes.clone()).await?,
        };
        match reply {
            // A new leader took over before the command was applied.
            Reply::Rejected(why @ Rejection::EpochStale { .. }) => Err(reject::rejected(&why)),
            reply => Ok((index, reply)),
        }
    }

    async fn apply_there(
        &self,
        mut leader: ForwardClient<Channel>,
        who: &Identity,
        op: Bytes,
    ) -> Result<(u64, Reply), RpcError> {
        let request = v1::ProposeRequest {
            op,
            on_behalf: who.name.clone(),
            role: who.role.as_str().into(),
            namespaces: who.namespaces.clone(),
        };
        let answer = leader.propose(request).await;
        let answer = answer.map_err(|status| RpcError::from_status(&status))?.into_inner();
        let reply = Reply::decode(&answer.reply).ok_or_else(|| {
            RpcError::new(ErrorCode::UnsupportedVersion, "the leader runs a later build")
        })?;
        log_position::applied(
            answer.coord_epoch,
            LogPosition { index: answer.index, position: answer.position },
        );
        self.applied(answer.index).await?;
        Ok((answer.index, reply))
    }

    /// Tries until an answer is final or the time is over. A change of the leader ends a try, because its answer may
    /// never come.
    async fn trying<T, F>(&self, mut make: impl FnMut() -> F) -> Result<T, ApiError>
    where
        F: Future<Output = Result<T, RpcError>>,
    {
        let (deadline, mut leadership) = (Instant::now() + WITHIN, self.shared.node.leadership());
        loop {
            leadership.borrow_and_update();
            let tried = tokio::select! {
                tried = timeout(TRY_WITHIN, make()) => tried.unwrap_or_else(|_| Err(late())),
                Ok(()) = leadership.changed() => {
                    Err(RpcError::new(ErrorCode::OutcomeUnknown, "the leader has changed"))
                }
            };
            let error = match tried {
                Ok(done) => return Ok(done),
                Err(error) if !may_pass(error.code) => return Err(error.into()),
                Err(error) => error,
            };
            if Instant::now() + PAUSE >= deadline {
                return Err(error.into());
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                Ok(()) = leadership.changed() => {}
            }
        }
    }
}

fn late() -> RpcError {
    RpcError::new(ErrorCode::TimedOut, "the leader has not answered in time")
}

/// Whether an error may be gone with another try or under another leader.
fn may_pass(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NotLeader
            | ErrorCode::NoQuorum
            | ErrorCode::NoLeader
            | ErrorCode::StaleEpoch
            | ErrorCode::OutcomeUnknown
            | ErrorCode::Fenced
            | ErrorCode::ConnectFailed
            | ErrorCode::TimedOut
    )
}

impl Cluster for Forwarding {
    fn with_ledger(&self, read: &mut dyn FnMut(&Ledger)) {
        // A member that belongs to no cluster has no ledger.
        let _ = self.shared.node.with_ledger(read);
    }

    fn read(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        self.trying(|| self.try_read()).boxed()
    }

    fn apply(&self, caller: Identity, op: OpKind) -> BoxFuture<'_, Result<(u64, Reply), ApiError>> {
        async move {
            let bytes = Bytes::from(op.encode());
            if bytes.len() > FORWARD_OP_BYTES_MAX {
                let message = format!(
                    "The request takes {} bytes in the cluster's log; the limit is {FORWARD_OP_BYTES_MAX}.",
                    bytes.len()
                );
                return Err(RpcError::new(ErrorCode::LimitExceeded, message).into());
            }
            let (caller, op) = (&caller, (&op, &bytes));
            self.trying(|| self.try_apply(caller, op)).await
        }
        .boxed()
    }

    fn check_contact(&self) -> Result<(), ApiError> {
        Ok(revoked_certificates::check_contact(&self.shared)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_of_a_changing_cluster_are_tried_again() {
        let again: Vec<_> = ErrorCode::ALL.iter().copied().filter(|code| may_pass(*code)).collect();
        assert_eq!(again.len(), 8, "{again:?}");
        assert!(again.iter().all(|code| code.retryable()), "{again:?}");
        for code in again {
            assert_eq!(ApiError::from(RpcError::new(code, "")).code(), "no_leader", "{code:?}");
        }
    }
}

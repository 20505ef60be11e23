//! `Forward`: what another member asks of the leader for the callers of its HTTP API, and for the batches that it works
//! on.
//!
//! *Invariant:* an operation acts only in the namespaces that its request lists, and a request without any is refused.
//! Only members may call, and the member that sends a request has authenticated the key on whose behalf it acts. A
//! forged request gains nothing: a member may lead, and then proposes what it likes.
//!
//! Absent: repeats after a lost answer, which the sender makes (`openai::forward`).

use super::Shared;
use crate::grpc::convert::invalid;
use crate::leader::caller;
use rollout_ledger::{Op, OpKind};
use rollout_proto::{ErrorCode, Identity, Role, RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Size limit of an operation, in its encoding.
pub(crate) const FORWARD_OP_BYTES_MAX: usize = 256 * 1024;

/// What the name of a batch's work begins with, as a caller.
pub(crate) const BATCH_CALLER: &str = "batch:";

#[derive(Clone)]
pub(crate) struct ForwardService(pub(crate) Arc<Shared>);

#[tonic::async_trait]
impl v1::forward_server::Forward for ForwardService {
    async fn propose(
        &self,
        request: Request<v1::ProposeRequest>,
    ) -> Result<Response<v1::ProposeResponse>, Status> {
        let r = request.into_inner();
        let op = op_in(&r.op)?;
        let caller = caller_in(r.on_behalf, &r.role, r.namespaces)?;
        let applied = caller::serving(caller, self.0.reply_to(Op::from(op))).await?;
        let (coord_epoch, at, reply) = applied;
        Ok(Response::new(v1::ProposeResponse {
            index: at.index,
            coord_epoch,
            position: at.position,
            reply: reply.encode().into(),
        }))
    }

    async fn read_index(
        &self,
        _: Request<v1::ReadIndexRequest>,
    ) -> Result<Response<v1::ReadIndexResponse>, Status> {
        self.0.reading().await?;
        let index = self.0.read_ledger(|l| l.applied().index);
        Ok(Response::new(v1::ReadIndexResponse { index }))
    }
}

fn op_in(bytes: &[u8]) -> Result<OpKind, RpcError> {
    if bytes.len() > FORWARD_OP_BYTES_MAX {
        let message =
            format!("an operation of {} bytes is over {FORWARD_OP_BYTES_MAX}", bytes.len());
        return Err(RpcError::new(ErrorCode::LimitExceeded, message));
    }
    let unknown = "op is no operation of this build: the sender may run a later one";
    OpKind::decode(bytes).ok_or_else(|| invalid(unknown))
}

/// The holder of an API key, as the sender's authentication has found it, or a batch. No certificate can have such a name.
fn caller_in(name: String, role: &str, namespaces: Vec<String>) -> Result<Identity, RpcError> {
    if namespaces.is_empty() {
        return Err(invalid("namespaces is empty: a key has at least one"));
    }
    if !name.starts_with("key:") && !name.starts_with(BATCH_CALLER) {
        return Err(invalid("on_behalf is not the name of a key, key:ID, or of a batch, batch:ID"));
    }
    let role = match role.parse() {
        Ok(role @ (Role::Client | Role::Admin)) => role,
        _ => return Err(invalid("role is not client or admin: no other key may change anything")),
    };
    Ok(Identity { role, name, namespaces })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::op::OpenClient;

    #[test]
    fn an_operation_acts_for_a_key_in_its_namespaces() {
        let of = |name: &str, role: &str, namespaces: &[&str]| {
            let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
            caller_in(name.to_owned(), role, namespaces)
        };
        let caller = of("key:abcdefgh", "client", &["team"]).expect("a key");
        assert_eq!(caller.to_string(), "client/key:abcdefgh");
        assert!(caller.allows_namespace("team") && !caller.allows_namespace("other"));
        assert!(of("batch:batch_1", "client", &["team"]).is_ok());
        for name in ["key:abcdefgh", "batch:batch_1"] {
            assert!(of(name, "client", &[]).is_err(), "it could act everywhere");
        }
        assert!(of("ann", "admin", &["team"]).is_err());
        for role in ["viewer", "member", "worker", "newcomer", ""] {
            assert!(of("key:abcdefgh", role, &["team"]).is_err(), "{role}");
        }
    }

    #[test]
    fn an_operation_is_bounded_and_whole() {
        let op = OpKind::OpenClient(OpenClient { name: "n".into(), holder: "client/ann".into() });
        assert_eq!(op_in(&op.encode()), Ok(op.clone()));
        let mut longer = op.encode();
        longer.push(0);
        assert_eq!(op_in(&longer).expect_err("a byte too many").code, ErrorCode::InvalidArgument);
        let large = vec![0; FORWARD_OP_BYTES_MAX + 1];
        assert_eq!(op_in(&large).expect_err("too large").code, ErrorCode::LimitExceeded);
    }
}

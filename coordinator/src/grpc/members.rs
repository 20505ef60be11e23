//! `Members`: the members of the cluster, and changes to them.
//!
//! *Invariant:* a change goes through the leader, which confirms its leadership first. A refused change was not
//! applied.
//! Absent: how a member joins once it is listed; `rollout-raft` does that.

use super::{Shared, caller, check_every_namespace};
use crate::leader::header::member_out;
use crate::leader::reject;
use crate::observe::audit;
use rollout_proto::{ErrorCode, RpcError, v1};
use rollout_raft::{Joins, MemberRecord};
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct MembersService(pub(crate) Arc<Shared>);

impl MembersService {
    /// The record of a voter or learner.
    fn record(&self, name: &str) -> Result<MemberRecord, RpcError> {
        let mut members = self.0.node.members().into_iter().map(|(member, _)| member);
        members.find(|member| member.name == name).ok_or_else(|| {
            RpcError::new(ErrorCode::MemberNotFound, format!("there is no member {name:?}"))
        })
    }

    /// Refuses at a follower what only the leader can do, and names the leader.
    fn check_leading(&self) -> Result<(), RpcError> {
        self.0.leader_state().map(drop)
    }
}

#[tonic::async_trait]
impl v1::members_server::Members for MembersService {
    async fn list_members(
        &self,
        _: Request<v1::ListMembersRequest>,
    ) -> Result<Response<v1::ListMembersResponse>, Status> {
        let (status, members) = (self.0.node.status(), self.0.node.members());
        let leads = !status.peers.is_empty() || self.0.node.lease_valid();
        let last = status.last_log.filter(|_| leads);
        let me = self.0.node.identity().map(|identity| identity.member_id);
        let name = |id: u64| members.iter().find(|(m, _)| m.id == id).map(|(m, _)| m.name.clone());
        let of = |(member, voter): &(MemberRecord, bool)| {
            let (becomes, replaces) = match (voter, member.joins) {
                (true, _) => ("", None),
                (false, Joins::Learner) => ("learner", None),
                (false, Joins::Voter { replaces }) => ("voter", replaces.and_then(name)),
            };
            let peer = status.peers.iter().find(|peer| peer.id == member.id);
            let own = last.filter(|_| me == Some(member.id));
            v1::MemberProgress {
                member: Some(member_out(member.clone(), *voter)),
                becomes: becomes.into(),
                replaces: replaces.unwrap_or_default(),
                matched_index: own.or(peer.and_then(|peer| peer.matched)),
                last_log_index: last.unwrap_or(0),
            }
        };
        let members = members.iter().map(of).collect();
        Ok(Response::new(v1::ListMembersResponse { header: Some(self.0.header()), members }))
    }

    async fn add_member(
        &self,
        request: Request<v1::AddMemberRequest>,
    ) -> Result<Response<v1::AddMemberResponse>, Status> {
        let identity = caller(&request)?;
        check_every_namespace(&identity)?;
        let r = request.into_inner();
        audit::about("member", &r.name);
        self.check_leading()?;
        let joins = if r.learner_only { Joins::Learner } else { Joins::default() };
        if r.learner_only && !r.replaces.is_empty() {
            let text = "a member that gets no vote replaces no voter".to_owned();
            return Err(crate::grpc::convert::invalid(text).into());
        }
        let record = MemberRecord {
            id: 0,
            name: r.name,
            peer_addr: r.peer_addr,
            client_addr: r.client_addr,
            zone: r.zone,
            // The member itself reports which versions it can run.
            version_min: 0,
            version_max: 0,
            joins,
            adopted: false,
        };
        tracing::info!(by = %identity, member = record.name, replaces = r.replaces, "adding member");
        let replaces = Some(r.replaces.as_str()).filter(|name| !name.is_empty());
        let added = self.0.node.add_member(record, replaces).await;
        let id = added.map_err(|e| reject::membership(&e))?;
        Ok(Response::new(v1::AddMemberResponse { header: Some(self.0.header()), id }))
    }

    async fn promote_member(
        &self,
        request: Request<v1::PromoteMemberRequest>,
    ) -> Result<Response<v1::PromoteMemberResponse>, Status> {
        let identity = caller(&request)?;
        check_every_namespace(&identity)?;
        let name = request.into_inner().name;
        audit::about("member", &name);
        self.check_leading()?;
        tracing::info!(by = %identity, member = name, "promoting member");
        self.0.node.promote_member(&name).await.map_err(|e| reject::membership(&e))?;
        Ok(Response::new(v1::PromoteMemberResponse { header: Some(self.0.header()) }))
    }

    async fn remove_member(
        &self,
        request: Request<v1::RemoveMemberRequest>,
    ) -> Result<Response<v1::RemoveMemberResponse>, Status> {
        let identity = caller(&request)?;
        check_every_namespace(&identity)?;
        let name = request.into_inner().name;
        audit::about("member", &name);
        self.check_leading()?;
        tracing::info!(by = %identity, member = name, "removing member");
        self.0.node.remove_member(&name).await.map_err(|e| reject::membership(&e))?;
        Ok(Response::new(v1::RemoveMemberResponse { header: Some(self.0.header()) }))
    }

    async fn update_member(
        &self,
        request: Request<v1::UpdateMemberRequest>,
    ) -> Result<Response<v1::UpdateMemberResponse>, Status> {
        let identity = caller(&request)?;
        check_every_namespace(&identity)?;
        let r = request.into_inner();
        audit::about("member", &r.name);
        self.check_leading()?;
        let mut record = self.record(&r.name)?;
        for (field, new) in
            [(&mut record.peer_addr, r.peer_addr), (&mut record.client_addr, r.client_addr)]
        {
            if !new.is_empty() {
                *field = new;
            }
        }
        record.zone = r.zone.unwrap_or(record.zone);
        tracing::info!(by = %identity, ?record, "updating member");
        self.0.node.update_member(record).await.map_err(|e| reject::membership(&e))?;
        Ok(Response::new(v1::UpdateMemberResponse { header: Some(self.0.header()) }))
    }

    async fn transfer_leader(
        &self,
        request: Request<v1::TransferLeaderRequest>,
    ) -> Result<Response<v1::TransferLeaderResponse>, Status> {
        let identity = caller(&request)?;
        check_every_namespace(&identity)?;
        let v1::TransferLeaderRequest { to, from: meant } = request.into_inner();
        audit::about("member", &to);
        self.check_leading()?;
        let from = self.0.config.name.clone();
        if !meant.is_empty() && meant != from {
            self.record(&meant)?;
            // A repeat after the transfer: the present leader is not the one to be replaced.
            let header = Some(self.0.header());
            return Ok(Response::new(v1::TransferLeaderResponse { header, from: meant }));
        }
        // Nothing to do if the request is repeated after the transfer, or if that member leads already.
        if to != from {
            if !to.is_empty() {
                self.record(&to)?;
            }
            tracing::info!(by = %identity, to, "transferring leadership");
            let to = Some(to.as_str()).filter(|name| !name.is_empty());
            self.0.node.transfer_leader(to).await.map_err(|e| reject::membership(&e))?;
        }
        Ok(Response::new(v1::TransferLeaderResponse { header: Some(self.0.header()), from }))
    }
}

//! The cluster service of a fake member: only its status, by which clients find the leader.

use rollout_proto::fakes::cluster_server::Cluster;
use rollout_proto::v1;
use tonic::{Request, Response, Status};

use super::member::Member;

#[tonic::async_trait]
impl Cluster for Member {
    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        if self.state.lock().hung.contains(&self.index) {
            std::future::pending::<()>().await;
        }
        let state = self.state.lock();
        let leads = state.leader == self.index;
        let role = if leads { "leader" } else { "follower" };
        Ok(Response::new(v1::StatusResponse {
            header: Some(state.header()),
            self_: Some(v1::MemberStatus {
                name: format!("c{}", self.index),
                id: self.index as u64 + 1,
                role: role.into(),
                term: state.epoch,
                ..Default::default()
            }),
            has_quorum: true,
            ..Default::default()
        }))
    }
}

//! What a member says of the cluster: its status, by which clients find the leader, and nothing else.

use rollout_proto::v1;
use rollout_proto::v1::cluster_server::Cluster;
use tonic::{Request, Response, Status};

use super::member::Member;

fn unused<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("no worker asks for this"))
}

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
    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        unused()
    }
    async fn request_digest(
        &self,
        _: Request<v1::RequestDigestRequest>,
    ) -> Result<Response<v1::RequestDigestResponse>, Status> {
        unused()
    }
    async fn digests(
        &self,
        _: Request<v1::DigestsRequest>,
    ) -> Result<Response<v1::DigestsResponse>, Status> {
        unused()
    }
    async fn bootstrap(
        &self,
        _: Request<v1::BootstrapRequest>,
    ) -> Result<Response<v1::BootstrapResponse>, Status> {
        unused()
    }
    async fn cordon_worker(
        &self,
        _: Request<v1::CordonWorkerRequest>,
    ) -> Result<Response<v1::CordonWorkerResponse>, Status> {
        unused()
    }

    async fn upgrade_cluster(
        &self,
        _: Request<v1::UpgradeClusterRequest>,
    ) -> Result<Response<v1::UpgradeClusterResponse>, Status> {
        unused()
    }
    async fn drain_worker(
        &self,
        _: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        unused()
    }
    async fn counters(
        &self,
        _: Request<v1::CountersRequest>,
    ) -> Result<Response<v1::CountersResponse>, Status> {
        unused()
    }
}

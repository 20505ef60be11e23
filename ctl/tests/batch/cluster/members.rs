//! The fake cluster's description of itself, as far as the commands under test ask for it.

use rollout_proto::fakes::cluster_server::Cluster;
use rollout_proto::v1;
use tonic::{Request, Response, Status};

use super::{Service, header};

#[tonic::async_trait]
impl Cluster for Service {
    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let leader = v1::MemberStatus {
            name: "c1".into(),
            id: 1,
            role: "leader".into(),
            term: 3,
            ..Default::default()
        };
        Ok(Response::new(v1::StatusResponse {
            header: header(),
            self_: Some(leader),
            has_quorum: true,
            ..Default::default()
        }))
    }

    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        let worker = v1::WorkerInfo { state: "ready".into(), ..Default::default() };
        Ok(Response::new(v1::ListWorkersResponse { header: header(), workers: vec![worker] }))
    }
}

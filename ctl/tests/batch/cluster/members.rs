//! The fake cluster's description of itself, and the methods that no command under test calls.

use rollout_proto::{ErrorCode, v1};
use tonic::{Request, Response, Status};
use v1::cluster_server::Cluster;

use super::{Service, header, refuse};

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

    async fn upgrade_cluster(
        &self,
        _: Request<v1::UpgradeClusterRequest>,
    ) -> Result<Response<v1::UpgradeClusterResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn request_digest(
        &self,
        _: Request<v1::RequestDigestRequest>,
    ) -> Result<Response<v1::RequestDigestResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn digests(
        &self,
        _: Request<v1::DigestsRequest>,
    ) -> Result<Response<v1::DigestsResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn bootstrap(
        &self,
        _: Request<v1::BootstrapRequest>,
    ) -> Result<Response<v1::BootstrapResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn cordon_worker(
        &self,
        _: Request<v1::CordonWorkerRequest>,
    ) -> Result<Response<v1::CordonWorkerResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn drain_worker(
        &self,
        _: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn list_settings(
        &self,
        _: Request<v1::ListSettingsRequest>,
    ) -> Result<Response<v1::ListSettingsResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn set_setting(
        &self,
        _: Request<v1::SetSettingRequest>,
    ) -> Result<Response<v1::SetSettingResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn counters(
        &self,
        _: Request<v1::CountersRequest>,
    ) -> Result<Response<v1::CountersResponse>, Status> {
        refuse(ErrorCode::Internal)
    }
}

//! The header with which every answer describes its cluster.
//!
//! *Invariant:* the client rejects an answer whose header is behind what the client has seen, whatever its content.
//!
//! Deliberately absent: the decision itself (`members`).

use crate::v1;

/// An answer. Before the client returns it, it checks the answer's header, if there is one.
pub trait HasHeader {
    /// The header; `None` if the message has none.
    fn header(&self) -> Option<&v1::ClusterHeader>;
}

macro_rules! with_header {
    ($($name:ident),* $(,)?) => {
        $(impl HasHeader for v1::$name {
            fn header(&self) -> Option<&v1::ClusterHeader> {
                self.header.as_ref()
            }
        })*
    };
}

with_header! {
    OpenSessionResponse, CreateRunResponse, AddSegmentsResponse, CloseInputResponse,
    ControlRunResponse,
    DeleteRunResponse, ListRunsResponse, DescribeRunResponse, WatchRunResponse,
    ReadResultsResponse, ProbeResponse, RegisterResponse, GetRunResponse, DeregisterResponse,
    LeaderMessage, StatusResponse, ListWorkersResponse, RequestDigestResponse, DigestsResponse,
    BootstrapResponse, UpgradeClusterResponse, CordonWorkerResponse, DrainWorkerResponse, ListItemsResponse,
    DescribeItemResponse, RetryItemsResponse, StoreApplyResponse, StoreReadResponse,
    StoreWaitResponse, StoreDropResponse, JoinResponse, RendezvousWaitResponse, KeepAliveResponse,
    LeaveResponse, RendezvousCloseResponse, RendezvousDescribeResponse, RendezvousListResponse,
    ArriveResponse, BarrierWaitResponse, BarrierAbortResponse, BarrierDescribeResponse,
    BarrierListResponse,
    ListMembersResponse, AddMemberResponse,
    PromoteMemberResponse, RemoveMemberResponse, UpdateMemberResponse, TransferLeaderResponse,
    CreateDatasetResponse, DescribeDatasetResponse, ListDatasetsResponse, DeleteDatasetResponse,
    JoinJobResponse, KeepTrainersResponse, LeaveJobResponse, ClaimShardResponse, WaitShardResponse,
    FinishShardResponse, ReleaseShardResponse, DescribeShardsResponse, ListJobsResponse,
    DeleteJobResponse, BeginCheckpointResponse, ReportCheckpointResponse, AbortCheckpointResponse,
    WaitCheckpointResponse, LatestCheckpointResponse, ListCheckpointsResponse,
    DescribeCheckpointResponse, PruneCheckpointsResponse, LabelCheckpointResponse, RecoverResponse,
    JobListResponse, JobDescribeResponse,
    ListNamespacesResponse, DescribeNamespaceResponse, SetQuotaResponse,
    CreateTokenResponse, ListTokensResponse, RevokeTokenResponse, RenewResponse,
    RevokeResponse, WithdrawResponse, ListRevocationsResponse,
    ListSettingsResponse, SetSettingResponse, SetDeadlineResponse, DryRunResponse,
}

impl HasHeader for v1::CountersResponse {
    fn header(&self) -> Option<&v1::ClusterHeader> {
        None
    }
}

/// A stream's messages have their own headers: pass each to [`super::Client::observe`].
impl<T> HasHeader for tonic::Streaming<T> {
    fn header(&self) -> Option<&v1::ClusterHeader> {
        None
    }
}

//! The cluster, its members, and the traffic between them.

use super::{Case, Does, case, default};
use crate::fixture::{DIGEST, Fixture, KEY};
use rollout_proto::v1;

pub(super) fn cluster(f: &Fixture) -> Vec<Case> {
    use Does::{Change, Read};
    let events = v1::WatchEventsRequest {
        start: v1::EventStart::Oldest.into(),
        follow: false,
        ..Default::default()
    };
    let again = v1::BootstrapRequest {
        members: vec![v1::MemberInfo { name: "other".into(), ..Default::default() }],
        store_url: String::new(),
    };
    let quota = v1::SetQuotaRequest {
        request: f.id(),
        namespace: default(),
        runs_max: Some(1000),
        ..Default::default()
    };
    let setting = v1::SetSettingRequest { request: f.id(), name: "cordon-after".into(), value: 5 };
    let described = v1::DescribeNamespaceRequest { namespace: default() };
    let dry_run =
        v1::DryRunRequest::of(&v1::SetSettingRequest { request: None, ..setting.clone() });
    vec![
        case("Cluster/Status", Does::TellEpoch, &v1::StatusRequest::default()),
        case("Cluster/ListWorkers", Read, &v1::ListWorkersRequest { namespace: default() }),
        case("Cluster/RequestDigest", Change, &v1::RequestDigestRequest {}),
        case("Cluster/Digests", Does::Refuse, &v1::DigestsRequest { index: 1, wait_ms: 0 }),
        case("Cluster/Bootstrap", Does::Refuse, &again),
        case("Cluster/Counters", Read, &v1::CountersRequest {}),
        case("Events/WatchEvents", Does::TellHistory, &events),
        // There is nothing to raise: a new cluster has the newest version.
        case("Cluster/UpgradeCluster", Read, &v1::UpgradeClusterRequest::default()),
        case("Cluster/ListSettings", Read, &v1::ListSettingsRequest {}),
        case("Cluster/SetSetting", Change, &setting),
        case("DryRuns/DryRun", Read, &dry_run),
        case("Maintenance/SaveSnapshot", Read, &v1::SaveSnapshotRequest {}),
        case("Maintenance/Diagnose", Read, &v1::DiagnoseRequest {}),
        case("Namespaces/SetQuota", Change, &quota),
        case("Namespaces/DescribeNamespace", Read, &described),
        case("Namespaces/ListNamespaces", Read, &v1::ListNamespacesRequest {}),
    ]
}

pub(super) fn members() -> Vec<Case> {
    use Does::{Change, Read, Refuse};
    // No process listens on that port.
    let nobody = || "127.0.0.1:9".to_owned();
    let add = v1::AddMemberRequest {
        name: "c2".into(),
        peer_addr: nobody(),
        client_addr: nobody(),
        ..Default::default()
    };
    let update =
        v1::UpdateMemberRequest { name: "c1".into(), zone: Some("z".into()), ..Default::default() };
    vec![
        case("Members/ListMembers", Read, &v1::ListMembersRequest {}),
        case("Members/AddMember", Refuse, &add),
        case("Members/PromoteMember", Refuse, &v1::PromoteMemberRequest { name: "nobody".into() }),
        case("Members/RemoveMember", Refuse, &v1::RemoveMemberRequest { name: "c1".into() }),
        case("Members/UpdateMember", Change, &update),
        case(
            "Members/TransferLeader",
            Read,
            &v1::TransferLeaderRequest { to: "c1".into(), from: String::new() },
        ),
    ]
}

/// A member without the intermediate CA refuses requests that need it.
pub(super) fn enrollment(f: &Fixture) -> Vec<Case> {
    use Does::{Change, Read, Refuse};
    let create = v1::CreateTokenRequest {
        request: f.id(),
        name: "rack".into(),
        role: "worker".into(),
        ttl_ms: 1000,
        uses_max: 1,
        secret_hash: DIGEST.to_vec().into(),
        ..Default::default()
    };
    let revoke = v1::RevokeTokenRequest { request: f.id(), name: "nobody's".into() };
    let revoke_certificates = v1::RevokeRequest {
        request: f.id(),
        identity: "worker/stolen".into(),
        ..Default::default()
    };
    let withdraw = v1::WithdrawRequest { request: f.id(), identity: "worker/nobody".into() };
    let create_key = v1::CreateKeyRequest {
        request: f.id(),
        id: "aB3dE6gH".into(),
        name: "ci".into(),
        role: "client".into(),
        secret_hash: DIGEST.to_vec().into(),
        ..Default::default()
    };
    let describe_key = v1::DescribeKeyRequest { id: KEY.into() };
    let revoke_key = v1::RevokeKeyRequest { request: f.id(), id: "nobodys1".into() };
    let enroll = v1::EnrolRequest { token: "rack".into(), name: "w7".into(), ..Default::default() };
    vec![
        case("Tokens/CreateToken", Refuse, &create),
        case("Tokens/ListTokens", Read, &v1::ListTokensRequest {}),
        case("Tokens/RevokeToken", Refuse, &revoke),
        case("Keys/CreateKey", Change, &create_key),
        case("Keys/ListKeys", Read, &v1::ListKeysRequest::default()),
        case("Keys/DescribeKey", Read, &describe_key),
        case("Keys/RevokeKey", Refuse, &revoke_key),
        case("Enrolment/Enrol", Refuse, &enroll),
        case("Enrolment/Renew", Refuse, &v1::RenewRequest::default()),
        case("Certificates/Revoke", Change, &revoke_certificates),
        case("Certificates/Withdraw", Refuse, &withdraw),
        case("Forward/Propose", Refuse, &v1::ProposeRequest::default()),
        case("Forward/ReadIndex", Read, &v1::ReadIndexRequest {}),
        case("Certificates/ListRevocations", Read, &v1::ListRevocationsRequest {}),
    ]
}

pub(super) fn peers() -> Vec<Case> {
    let message = v1::PeerMessage { from: 2, to: 1, ..Default::default() };
    let adopt = v1::AdoptRequest { cluster_id: "0".repeat(32), member_id: 1, name: "c1".into() };
    let served = Does::ServePeers;
    vec![
        case("Peer/Append", served, &message),
        case("Peer/Vote", served, &message),
        case("Peer/PreVote", served, &message),
        case("Peer/TransferLeader", served, &message),
        case("Peer/InstallSnapshot", served, &v1::SnapshotChunk { to: 1, ..Default::default() }),
        case("Peer/Hello", served, &v1::HelloRequest::default()),
        case("Peer/Adopt", served, &adopt),
    ]
}

//! Which methods are audited.
//!
//! *Invariant:* every method of the contract is in exactly one of two lists, or a test fails. The second list has the
//! regular traffic of workers and training processes.

/// Methods with which users and their programs change runs, workers, members and other objects, and the start and end
/// of sessions.
const AUDITED: &[&str] = &[
    "Runs/OpenSession",
    "Runs/CreateRun",
    "Runs/AddSegments",
    "Runs/CloseInput",
    "Runs/ControlRun",
    "Runs/DeleteRun",
    "Items/RetryItems",
    "Store/Drop",
    "Rendezvous/Close",
    "Barrier/Abort",
    "Datasets/CreateDataset",
    "Datasets/DeleteDataset",
    "Shards/DeleteJob",
    "Checkpoints/AbortCheckpoint",
    "Checkpoints/PruneCheckpoints",
    "Checkpoints/LabelCheckpoint",
    "Checkpoints/Recover",
    "Worker/Register",
    "Worker/Deregister",
    "Cluster/RequestDigest",
    "Cluster/CordonWorker",
    "Cluster/DrainWorker",
    "Cluster/Bootstrap",
    "Namespaces/SetQuota",
    "Tokens/CreateToken",
    "Tokens/RevokeToken",
    "Certificates/Revoke",
    "Certificates/Withdraw",
    "Enrolment/Enrol",
    "Enrolment/Renew",
    "Members/AddMember",
    "Members/PromoteMember",
    "Members/RemoveMember",
    "Members/UpdateMember",
    "Members/TransferLeader",
    // `SaveSnapshot` and `Diagnose` change nothing, but export much data.
    "Maintenance/SaveSnapshot",
    "Cluster/UpgradeCluster",
    "Cluster/SetSetting",
    "Maintenance/Diagnose",
];

/// Reads, and the regular traffic of workers, training processes and members.
#[cfg(test)]
const OTHERS: &[&str] = &[
    "Runs/ListRuns",
    "Runs/DescribeRun",
    "Runs/WatchRun",
    "Runs/ReadResults",
    "Items/ListItems",
    "Items/DescribeItem",
    "Store/Apply",
    "Store/Read",
    "Store/Wait",
    "Rendezvous/Join",
    "Rendezvous/Participate",
    "Rendezvous/Wait",
    "Rendezvous/KeepAlive",
    "Rendezvous/Leave",
    "Rendezvous/Describe",
    "Rendezvous/List",
    "Barrier/Arrive",
    "Barrier/Wait",
    "Barrier/Describe",
    "Barrier/List",
    "Datasets/DescribeDataset",
    "Datasets/ListDatasets",
    "Shards/JoinJob",
    "Shards/KeepTrainers",
    "Shards/LeaveJob",
    "Shards/ClaimShard",
    "Shards/WaitShard",
    "Shards/FinishShard",
    "Shards/ReleaseShard",
    "Shards/DescribeShards",
    "Shards/ListJobs",
    "Checkpoints/BeginCheckpoint",
    "Checkpoints/ReportCheckpoint",
    "Checkpoints/WaitCheckpoint",
    "Checkpoints/LatestCheckpoint",
    "Checkpoints/ListCheckpoints",
    "Checkpoints/DescribeCheckpoint",
    "Worker/Probe",
    "Worker/GetRun",
    "Worker/Work",
    "Cluster/Status",
    "Cluster/ListWorkers",
    "Cluster/ListSettings",
    "Cluster/Digests",
    "Cluster/Counters",
    "Tokens/ListTokens",
    "Certificates/ListRevocations",
    "Namespaces/ListNamespaces",
    "Namespaces/DescribeNamespace",
    "Members/ListMembers",
    "Events/WatchEvents",
    "Peer/Append",
    "Peer/Vote",
    "Peer/PreVote",
    "Peer/TransferLeader",
    "Peer/InstallSnapshot",
    "Peer/Hello",
    "Peer/Adopt",
];

/// Whether every request of the method at `path` gets a line.
pub(super) fn is_audited(path: &str) -> bool {
    path.strip_prefix("/rollout.v1.").is_some_and(|method| AUDITED.contains(&method))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use rollout_proto::{METHODS, v1};
    use std::collections::BTreeSet;

    #[test]
    fn every_method_of_the_contract_is_in_one_of_the_two_lists() {
        let set = prost_types::FileDescriptorSet::decode(v1::DESCRIPTORS).expect("descriptors");
        let services = set.file.iter().flat_map(|file| &file.service);
        let methods = services.flat_map(|service| {
            let named =
                |m: &prost_types::MethodDescriptorProto| format!("{}/{}", service.name(), m.name());
            service.method.iter().map(named).collect::<Vec<_>>()
        });
        let contract: BTreeSet<String> = methods.collect();
        let listed: BTreeSet<String> =
            AUDITED.iter().chain(OTHERS).map(|m| (*m).to_owned()).collect();
        assert_eq!(listed.len(), AUDITED.len() + OTHERS.len(), "a method is listed twice");
        assert_eq!(listed, contract);
        assert!(is_audited("/rollout.v1.Runs/CreateRun"));
        assert!(!is_audited("/rollout.v1.Worker/Work") && !is_audited("Runs/CreateRun"));
    }

    #[test]
    fn the_options_of_the_methods_say_what_the_list_says() {
        let options: BTreeSet<&str> =
            METHODS.iter().filter(|method| method.audited).map(|method| method.path).collect();
        let list: Vec<String> = AUDITED.iter().map(|m| format!("/rollout.v1.{m}")).collect();
        assert_eq!(options, list.iter().map(String::as_str).collect::<BTreeSet<_>>());
    }
}

//! Owns: which requests the leader can check in a dry run, and their methods.
//!
//! *Invariant:* each of the methods changes the cluster, and takes the request that is listed with it.
//! Absent: the check, which the coordinator makes.

use crate::v1;

/// A request that `DryRuns/DryRun` can check.
pub trait DryRunnable: prost::Message + Default {
    /// The path of its method.
    const METHOD: &'static str;
}

macro_rules! dry_runnable {
    ($($method:literal($request:ident),)*) => {
        $(impl DryRunnable for v1::$request {
            const METHOD: &'static str = concat!("/rollout.v1.", $method);
        })*

        /// The paths of the methods whose requests `DryRuns/DryRun` can check.
        pub const DRY_RUNS: &[&str] = &[$(<v1::$request as DryRunnable>::METHOD),*];

        #[cfg(test)]
        const REQUESTS: &[&str] = &[$(stringify!($request)),*];
    };
}

dry_runnable! {
    "Barrier/Abort"(BarrierAbortRequest),
    "Certificates/Revoke"(RevokeRequest),
    "Certificates/Withdraw"(WithdrawRequest),
    "Checkpoints/AbortCheckpoint"(AbortCheckpointRequest),
    "Checkpoints/LabelCheckpoint"(LabelCheckpointRequest),
    "Cluster/CordonWorker"(CordonWorkerRequest),
    "Cluster/DrainWorker"(DrainWorkerRequest),
    "Cluster/SetSetting"(SetSettingRequest),
    "Datasets/CreateDataset"(CreateDatasetRequest),
    "Datasets/DeleteDataset"(DeleteDatasetRequest),
    "Items/RetryItems"(RetryItemsRequest),
    "Namespaces/SetQuota"(SetQuotaRequest),
    "Rendezvous/Close"(RendezvousCloseRequest),
    "Runs/ControlRun"(ControlRunRequest),
    "Runs/DeleteRun"(DeleteRunRequest),
    "Runs/SetDeadline"(SetDeadlineRequest),
    "Shards/DeleteJob"(DeleteJobRequest),
    "Tokens/CreateToken"(CreateTokenRequest),
    "Tokens/RevokeToken"(RevokeTokenRequest),
}

impl v1::DryRunRequest {
    /// Asks whether the leader would grant the request.
    pub fn of<T: DryRunnable>(request: &T) -> Self {
        Self { method: T::METHOD.to_owned(), request: request.encode_to_vec().into() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost::Message as _;

    use super::*;
    use crate::methods::{METHODS, Method};

    /// Audited methods without a dry run, with the reason.
    const WITHOUT: &[(&str, &[&str])] = &[
        (
            "membership and leadership: checks and changes alternate in consensus, so rolloutctl plans them itself",
            &[
                "Cluster/Bootstrap",
                "Members/AddMember",
                "Members/PromoteMember",
                "Members/RemoveMember",
                "Members/TransferLeader",
                "Members/UpdateMember",
            ],
        ),
        (
            "the request has a field `dry_run`",
            &["Checkpoints/PruneCheckpoints", "Cluster/UpgradeCluster"],
        ),
        (
            "no later request is decided by what it leaves: a digest, a session, a copy",
            &[
                "Cluster/RequestDigest",
                "Maintenance/Diagnose",
                "Maintenance/SaveSnapshot",
                "Runs/OpenSession",
            ],
        ),
        (
            "a step of `rollout infer`, whose --dry-run reads the input and counts its rows",
            &["Runs/AddSegments", "Runs/CloseInput", "Runs/CreateRun"],
        ),
        (
            "only programs send it: workers, trainers, clients of a shared store",
            &["Checkpoints/Recover", "Store/Drop", "Worker/Deregister", "Worker/Register"],
        ),
        (
            "a member signs a certificate: the change is outside of the ledger",
            &["Enrolment/Enrol", "Enrolment/Renew"],
        ),
    ];

    fn without() -> impl Iterator<Item = String> {
        let methods = WITHOUT.iter().flat_map(|(_, methods)| *methods);
        methods.map(|method| format!("/rollout.v1.{method}"))
    }

    /// A verb whose request the leader cannot check plans from what it reads, which proves little.
    #[test]
    fn an_audited_method_has_a_dry_run_or_a_reason_to_have_none() {
        for method in METHODS.iter().filter(|method| method.audited) {
            let has_dry_run = DRY_RUNS.contains(&method.path);
            let has_reason = without().any(|path| path == method.path);
            assert!(
                has_dry_run || has_reason,
                "{}: list it in dry_runnable!, or in WITHOUT with the reason",
                method.path
            );
            assert!(!(has_dry_run && has_reason), "{} has a dry run", method.path);
        }
        for path in without() {
            let audited = Method::find(&path).is_some_and(|method| method.audited);
            assert!(audited, "{path} needs no reason: it changes nothing, or does not exist");
            assert_eq!(
                without().filter(|other| *other == path).count(),
                1,
                "{path} is listed twice"
            );
        }
    }

    #[test]
    fn a_dry_run_checks_audited_methods_with_their_own_requests() {
        let set = prost_types::FileDescriptorSet::decode(v1::DESCRIPTORS).unwrap();
        let mut inputs = BTreeMap::new();
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    inputs.insert(path, method.input_type().to_owned());
                }
            }
        }
        for (path, request) in DRY_RUNS.iter().zip(REQUESTS) {
            assert_eq!(inputs[*path], format!(".rollout.v1.{request}"), "{path}");
            let method = Method::find(path).unwrap();
            assert!(method.audited, "{path} changes nothing");
            assert!(!method.client_streaming && !method.server_streaming, "{path}");
        }
    }

    /// The roles of `DryRuns/DryRun` are those of the methods that it checks.
    #[test]
    fn a_role_may_ask_for_a_dry_run_if_it_may_call_a_method_that_has_one() {
        let dry_run = Method::find("/rollout.v1.DryRuns/DryRun").unwrap();
        for method in DRY_RUNS.iter().filter_map(|path| Method::find(path)) {
            let listed = method.roles.iter().all(|role| dry_run.roles.contains(role));
            assert!(listed, "{}: {:?}", method.path, method.roles);
        }
    }

    #[test]
    fn a_request_is_named_by_its_method() {
        let request = v1::DeleteRunRequest { name: "eval".into(), ..Default::default() };
        let asked = v1::DryRunRequest::of(&request);
        assert_eq!(asked.method, "/rollout.v1.Runs/DeleteRun");
        assert_eq!(v1::DeleteRunRequest::decode(asked.request).unwrap(), request);
    }
}

//! Every verb that changes something has a plan, and no other. The leader checks the plan, if it can.

use std::sync::{Arc, Mutex};

use clap::Parser as _;
use rollout_proto::RpcError;
use rollout_proto::fakes::cluster_server::{Cluster, ClusterServer};
use rollout_proto::fakes::dry_runs_server::{DryRuns, DryRunsServer};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::*;
use crate::rolloutctl::cli::Cli;
use crate::rolloutctl::verb::{Branch as _, no_dry_run};
use crate::rolloutctl::{exit, flags};

async fn dry_run(line: &str) -> anyhow::Result<()> {
    // No member answers there: a plan that asks the cluster fails.
    dry_run_at("127.0.0.1:1", "100ms", line).await
}

async fn dry_run_at(endpoint: &str, timeout: &str, line: &str) -> anyhow::Result<()> {
    let there = ["-e", endpoint, "--insecure-plaintext", "--timeout", timeout, "--dry-run"];
    let words = std::iter::once("rolloutctl").chain(line.split(' ')).chain(there);
    let (command, globals) = Cli::try_parse_from(words).expect(line).split();
    command.dry_run(&globals).await
}

/// A leader with one setting.
#[derive(Clone, Default)]
struct Leader {
    /// With which it refuses dry runs.
    refuses: Option<ErrorCode>,
    /// The dry runs that it was asked for.
    asked: Arc<Mutex<Vec<v1::DryRunRequest>>>,
}

fn header() -> Option<v1::ClusterHeader> {
    Some(v1::ClusterHeader {
        cluster_id: "c".repeat(32),
        coord_epoch: 3,
        applied_index: 9,
        ..Default::default()
    })
}

#[tonic::async_trait]
impl Cluster for Leader {
    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let own = v1::MemberStatus {
            name: "c1".into(),
            id: 1,
            role: "leader".into(),
            term: 3,
            ..Default::default()
        };
        let (header, self_) = (header(), Some(own));
        let has_quorum = true;
        Ok(Response::new(v1::StatusResponse { header, self_, has_quorum, ..Default::default() }))
    }

    async fn list_settings(
        &self,
        _: Request<v1::ListSettingsRequest>,
    ) -> Result<Response<v1::ListSettingsResponse>, Status> {
        let settings = crate::rolloutctl::cluster::set::tests::one_setting(3);
        Ok(Response::new(v1::ListSettingsResponse { header: header(), ..settings }))
    }
}

#[tonic::async_trait]
impl DryRuns for Leader {
    async fn dry_run(
        &self,
        request: Request<v1::DryRunRequest>,
    ) -> Result<Response<v1::DryRunResponse>, Status> {
        self.asked.lock().unwrap().push(request.into_inner());
        match self.refuses {
            Some(code) => Err(RpcError::new(code, "as of now").into()),
            None => Ok(Response::new(v1::DryRunResponse { header: header() })),
        }
    }
}

/// Starts the leader, and returns its address. One of an earlier build has no dry runs.
async fn serve(leader: &Leader, earlier: bool) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let mut server = tonic::transport::Server::builder();
    let mut router = server.add_service(ClusterServer::new(leader.clone()));
    if !earlier {
        router = router.add_service(DryRunsServer::new(leader.clone()));
    }
    tokio::spawn(router.serve_with_incoming(TcpListenerStream::new(listener)));
    addr
}

const SET: &str = "cluster set cordon-after 5";

#[tokio::test]
async fn the_leader_checks_the_request_that_the_command_would_send() {
    let leader = Leader::default();
    let endpoint = serve(&leader, false).await;
    dry_run_at(&endpoint, "30s", SET).await.unwrap();
    let name = "cordon-after".to_owned();
    let request = v1::SetSettingRequest { request: None, name, value: 5 };
    assert_eq!(*leader.asked.lock().unwrap(), [v1::DryRunRequest::of(&request)]);
}

#[tokio::test]
async fn a_refused_dry_run_ends_with_the_error_of_the_request() {
    let leader = Leader { refuses: Some(ErrorCode::ChangeUnsafe), ..Leader::default() };
    let endpoint = serve(&leader, false).await;
    let error = dry_run_at(&endpoint, "30s", SET).await.unwrap_err();
    let text = exit::explain(&error);
    assert_eq!(exit::code(&error), 6, "{text}");
    assert!(text.contains("RO-1013: as of now"), "{text}");
}

#[tokio::test]
async fn a_leader_of_an_earlier_build_gets_no_request_to_execute() {
    let leader = Leader::default();
    let endpoint = serve(&leader, true).await;
    dry_run_at(&endpoint, "30s", SET).await.unwrap();
    assert!(leader.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_dry_run_is_refused_exactly_for_verbs_that_change_nothing() {
    for (path, accepts) in flags::verbs() {
        let Some(line) = flags::tests::line_of(&path) else {
            assert!(!accepts.dry_run, "{path}: LINES needs a line of it");
            continue;
        };
        let refused = dry_run(&line)
            .await
            .is_err_and(|error| exit::explain(&error) == exit::explain(&no_dry_run()));
        assert_eq!(refused, !accepts.dry_run, "{line}");
    }
}

#[tokio::test]
async fn a_dry_run_of_a_prune_only_asks_what_would_be_removed() {
    let error = dry_run("checkpoint prune job --keep-last 3").await.unwrap_err();
    let text = exit::explain(&error);
    assert!(text.contains("prune checkpoints: "), "{text}");
}

#[test]
fn a_plan_says_that_nothing_was_changed() {
    let plan = Plan::new("cancel run eval", "running");
    let text = plan.table();
    assert_eq!(text, "would cancel run eval\n  now: running\nnothing was changed\n");
    crate::golden::report("plan.txt", &Plan { checked: true, ..plan });
}

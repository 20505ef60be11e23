//! A dry run needs the role of the request in it, and is refused before that request is read.

use anyhow::{Context, Result, bail};
use rollout_proto::{
    Client, ClientConfig, ClientError, DRY_RUNS, ErrorCode, Role, authz, services, v1,
};
use rollout_tests::{Fleet, FleetOptions};

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_is_refused_to_a_role_that_may_not_call_its_method() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let endpoints = fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
    let client = Client::new(ClientConfig::new(endpoints, fleet.security("client", "user")))?;
    for path in DRY_RUNS {
        // These bytes are no message.
        let request =
            v1::DryRunRequest { method: (*path).to_owned(), request: vec![255_u8].into() };
        let answer = client
            .with_leader("dry run", |channel| {
                let request = request.clone();
                async move { services::dry_runs(channel).dry_run(request).await }
            })
            .await;
        let Err(ClientError::Rpc(error)) = answer else { bail!("{path}: {answer:?}") };
        let allowed = authz::allowed(path).context("a method")?.contains(&Role::Client);
        let expected =
            if allowed { ErrorCode::InvalidArgument } else { ErrorCode::PermissionDenied };
        assert_eq!(error.code, expected, "{path}: {error}");
    }
    fleet.passed()
}

//! Requests to members that do not lead.

use crate::ranks_and_rounds::setup::{PATIENCE, client, create_dataset};
use anyhow::{Result, ensure};
use rollout_proto::{
    ChannelOptions, ClientTls, DialMap, Endpoint, RpcError, Stamp, channel, services, v1,
};
use rollout_tests::{Fleet, FleetOptions};
use std::time::Duration;
use tonic::service::interceptor::InterceptedService;

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_lead_refuses_no_shard_for_what_it_does_not_know() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    create_dataset(&fleet, 100).await?;
    // The waiting member knows no cluster, and so no dataset.
    fleet.start_waiting("c4")?;
    let tls = ClientTls::load(&fleet.security("client", "user"))?;
    let endpoint = Endpoint::with_name("c4".to_owned(), fleet.client_addr("c4"))?;
    let direct = channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?;
    let direct = InterceptedService::new(direct, Stamp::default());
    let session = client(&fleet)?.open_session("test").await?;
    let pending = session.request();
    let job = Some(v1::JobName { namespace: String::new(), job: "sft".into() });
    let request = v1::ReleaseShardRequest {
        request: Some(pending.id()),
        by: Some(v1::TrainerRef { job, trainer: "t0".into(), ticket: 1 }),
        dataset: "pile".into(),
        shard: 1,
        token: 1,
        end_sample: 10,
        ..v1::ReleaseShardRequest::default()
    };
    let begun = std::time::Instant::now();
    let refused = loop {
        let Err(status) = services::shards(direct.clone()).release_shard(request.clone()).await
        else {
            anyhow::bail!("a waiting member took a shard back");
        };
        // An error without details means that the member does not listen yet.
        if !status.details().is_empty() {
            break RpcError::from_status(&status);
        }
        ensure!(begun.elapsed() < PATIENCE, "{status}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    ensure!(refused.retryable, "the leader knows the dataset: {refused:?}");
    fleet.passed()
}

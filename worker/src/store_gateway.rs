//! Owns: the gateway to a training job's store, inside the agent.
//!
//! Invariant: it ends with the agent and never ends the agent: rows do not wait for a store.
//! Absent: the protocol; crate `rollout-gateway` has it.

use std::time::Duration;

use rollout_gateway::{GatewayOptions, LocalUsers, serve_users};
use rollout_proto::Client;

use crate::config::StoreGatewayConfig;

/// The pause before the next try if the port is taken or the cluster refuses.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Serves the store until the task is dropped.
pub(crate) async fn keep_serving(client: Client, namespace: String, config: StoreGatewayConfig) {
    let options = GatewayOptions {
        namespace,
        job: config.job.clone(),
        round: config.round,
        ticket: 0,
        listen: config.listen,
        insecure: config.insecure_tcpstore,
    };
    let users = LocalUsers::own().and(&config.allow_uids);
    loop {
        let job = config.job.clone();
        let ready = |address| tracing::info!(%address, job, "serving a store");
        if let Err(error) = serve_users(client.clone(), options.clone(), users.clone(), ready).await
        {
            tracing::error!(%error, "cannot serve the store");
        }
        tokio::time::sleep(AGAIN_AFTER).await;
    }
}

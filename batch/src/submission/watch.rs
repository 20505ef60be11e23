//! Owns: following a run to its end, through changes of the leader.
//!
//! Invariant: only a timeout without any leader, or a refusal, ends the watch before the run ends.
//! Absent: how progress is shown.

use rollout_proto::{CallOptions, Client, ClientError, services, v1};

use crate::leader_stream::{IdleTimeout, LeaderStream};

const INTERVAL_MS: u32 = 500;

/// Follows a run until it has ended; `seen` gets every summary.
pub async fn follow(
    client: &Client,
    namespace: &str,
    name: &str,
    mut seen: impl FnMut(&v1::RunSummary),
) -> Result<v1::RunSummary, ClientError> {
    let request = v1::WatchRunRequest {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        interval_ms: INTERVAL_MS,
    };
    let mut idle_timeout = IdleTimeout::new(client, "watch the run");
    loop {
        let opened = client.with_leader_opts("watch the run", CallOptions::read(), |channel| {
            let request = request.clone();
            async move { services::runs(channel).watch_run(request).await }
        });
        let mut stream = LeaderStream::new(client, opened.await?);
        while let Some(message) = stream.next(|message| message.header.as_ref()).await? {
            let Some(run) = message.run else { break };
            idle_timeout.renew();
            seen(&run);
            if ended(&run) {
                return Ok(run);
            }
        }
        stream.abandon().await;
        idle_timeout.check()?;
    }
}

/// Whether a run has ended.
pub fn ended(run: &v1::RunSummary) -> bool {
    use v1::RunState::{Cancelled, DeadlineExceeded, Deleting, Finished};
    matches!(run.state(), Finished | Cancelled | Deleting | DeadlineExceeded)
}

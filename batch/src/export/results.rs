//! Owns: the list of a run's segments with their outcomes, read from the leader.
//!
//! Invariant: segments come in order, each once, whatever happens to the stream.
//! Absent: bytes of rows.

use rollout_proto::{CallOptions, Client, services, v1};

use crate::leader_stream::{IdleTimeout, LeaderStream};
use crate::submission::error::BatchError;

pub(crate) struct Results {
    client: Client,
    run: u32,
    first: u32,
    next: u32,
    segments: u32,
    stream: Option<LeaderStream<v1::ReadResultsResponse>>,
    idle_timeout: IdleTimeout,
}

impl Results {
    /// Some of a run's segments.
    pub(super) fn range(client: &Client, run: u32, segments: std::ops::Range<u32>) -> Self {
        let idle_timeout = IdleTimeout::new(client, "read results");
        let (client, first, segments) = (client.clone(), segments.start, segments.end);
        Self { client, run, first, next: first, segments, stream: None, idle_timeout }
    }

    /// How many segments were listed.
    pub(super) fn listed(&self) -> u32 {
        self.next - self.first
    }

    /// The next segment; None after the last.
    pub(super) async fn next(&mut self) -> Result<Option<v1::ReadResultsResponse>, BatchError> {
        // The caller may have been slow; the wait for the cluster counts from now on.
        self.idle_timeout.renew();
        while self.next < self.segments {
            let Some(stream) = &mut self.stream else {
                self.stream = Some(self.open().await?);
                continue;
            };
            match stream.next(|message| message.header.as_ref()).await? {
                Some(listed) if listed.number == self.next => {
                    self.next += 1;
                    return Ok(Some(listed));
                }
                // If a member lists something else, ask again.
                _ => {
                    if let Some(stream) = self.stream.take() {
                        stream.abandon().await;
                    }
                    self.idle_timeout.check()?;
                }
            }
        }
        Ok(None)
    }

    async fn open(&self) -> Result<LeaderStream<v1::ReadResultsResponse>, BatchError> {
        let request = v1::ReadResultsRequest {
            run: self.run,
            first_segment: self.next,
            segments_max: self.segments - self.next,
        };
        let opened = self.client.with_leader_opts(
            "read results",
            CallOptions::read(),
            |channel| async move { services::runs(channel).read_results(request).await },
        );
        Ok(LeaderStream::new(&self.client, opened.await?))
    }
}

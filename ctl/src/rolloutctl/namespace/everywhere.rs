//! `--all-namespaces`: a list of all that the caller may see.
//!
//! Invariant: the namespaces are those that the cluster names to the caller. Deliberately absent: one answer for all; each namespace
//! is asked for by itself, so the list is not of one log index.

use rollout_proto::{CallOptions, Client, ClientError, services, v1};

/// Of which namespaces.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
pub(crate) struct Everywhere {
    /// List all namespaces that your certificate allows; overrides --namespace
    #[arg(short = 'A', long)]
    all_namespaces: bool,
}

impl Everywhere {
    /// Whether all are asked for.
    pub(in crate::rolloutctl) fn is_asked_for(self) -> bool {
        self.all_namespaces
    }

    /// The namespaces to ask for: all, or that one.
    ///
    /// # Errors
    /// When no leader says which there are.
    pub(in crate::rolloutctl) async fn namespaces(
        self,
        client: &Client,
        one: String,
    ) -> Result<Vec<String>, ClientError> {
        if !self.all_namespaces {
            return Ok(vec![one]);
        }
        let answer = client
            .with_leader_opts("list namespaces", CallOptions::read(), |channel| async move {
                services::namespaces(channel).list_namespaces(v1::ListNamespacesRequest {}).await
            })
            .await?;
        Ok(answer.namespaces.into_iter().map(|namespace| namespace.name).collect())
    }
}

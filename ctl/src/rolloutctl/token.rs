//! `rolloutctl token`: who may enroll for a certificate, without copying keys to the host.
//!
//! Invariant: a secret is generated here, shown once, and never sent: the cluster gets its hash.

pub(super) mod create;
pub(super) mod list;
pub(super) mod revoke;
mod summary;

use rollout_proto::{CallOptions, services, v1};

use crate::output::counted;
use crate::rolloutctl::dry_run::{Plan, Reader};

/// Plans a change of each token. `verb` has the words before a token's name.
async fn plans(reader: &Reader, names: &[String], verb: &str) -> anyhow::Result<Plan> {
    let answer = reader
        .client
        .with_leader_opts("list join tokens", CallOptions::read(), |channel| async move {
            services::tokens(channel).list_tokens(v1::ListTokensRequest {}).await
        })
        .await?;
    let plan = |name: &String| {
        let now = match answer.tokens.iter().find(|token| token.name == *name) {
            Some(token) => {
                format!("it was used {} of {}", token.uses, counted(token.uses_max.into(), "time"))
            }
            None => "it does not exist".to_owned(),
        };
        Plan::new(format!("{verb} {name}"), now)
    };
    Ok(Plan::of_all(names.iter().map(plan).collect()))
}

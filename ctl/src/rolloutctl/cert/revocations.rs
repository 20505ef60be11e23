//! `rolloutctl cert revocations`: every revocation in force, newest first.

use rollout_proto::{CallOptions, services, v1};
use serde::Serialize;

use super::instant::format_instant;
use crate::output::{self, Report, Table};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

#[derive(Serialize)]
struct RevocationList {
    revocations: Vec<Revocation>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Revocation {
    /// Null for every identity.
    identity: Option<String>,
    /// Null for all of them.
    issued_before: Option<String>,
    reason: String,
    made_at: String,
}

impl From<v1::Revocation> for Revocation {
    fn from(wire: v1::Revocation) -> Self {
        Self {
            identity: (!wire.identity.is_empty()).then_some(wire.identity),
            issued_before: wire.issued_before_s.map(format_instant),
            reason: wire.reason,
            made_at: format_instant(wire.made_wall_ms / 1000),
        }
    }
}

impl Report for RevocationList {
    const KIND: &'static str = "RevocationList";

    fn table(&self) -> String {
        let mut table = Table::new(&["CERTIFICATES OF", "ISSUED BEFORE", "REVOKED AT", "REASON"]);
        for revocation in &self.revocations {
            table.row([
                revocation.identity.clone().unwrap_or_else(|| "everyone".into()),
                revocation.issued_before.clone().unwrap_or_else(|| "any time".into()),
                revocation.made_at.clone(),
                revocation.reason.clone(),
            ]);
        }
        table.to_string()
    }
}

/// Which revocations.
#[derive(Debug, clap::Args)]
pub(crate) struct RevocationsArgs {
    #[command(flatten)]
    options: ListOptions,
}

impl Verb for RevocationsArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let answer = globals
            .connect
            .settings()?
            .client(None)?
            .with_leader_opts("list revocations", CallOptions::read(), |channel| async move {
                services::certificates(channel)
                    .list_revocations(v1::ListRevocationsRequest {})
                    .await
            })
            .await?;
        let mut revocations = newest_first(answer.revocations);
        self.options.apply(&mut revocations)?;
        output::emit(globals.format, &RevocationList { revocations })
    }
}

fn newest_first(mut wire: Vec<v1::Revocation>) -> Vec<Revocation> {
    wire.sort_by_key(|revocation| std::cmp::Reverse(revocation.made_wall_ms));
    wire.into_iter().map(Revocation::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_whose_certificates_are_refused_and_why() {
        let everyone = v1::Revocation {
            issued_before_s: Some(1_795_771_800),
            reason: "the authority's key was copied".into(),
            made_wall_ms: 1_795_771_900_000,
            ..Default::default()
        };
        let worker = v1::Revocation {
            identity: "worker/gpu-7".into(),
            made_wall_ms: 1_795_771_800_000,
            ..Default::default()
        };
        let revocations = newest_first(vec![worker, everyone]);
        crate::golden::report("cert-revocations.txt", &RevocationList { revocations });
    }
}

//! `rolloutctl cert revoke`: identities whose certificates every member refuses.
//!
//! Invariant: a revocation that locks out the caller is refused unless `--force` is given; the cluster checks it.

use rollout_proto::{CallOptions, services, v1};
use serde::Serialize;

use super::instant::{format_instant, parse_instant};
use crate::output::{self, Report};
use crate::rolloutctl::dry_run::{Checked, Plan, Planned, PlannedRequest, Reader, one, planned};
use crate::rolloutctl::request::numbered;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Whose certificates.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).multiple(true)))]
#[command(after_help = concat!(
    "Examples:",
    "\n  rolloutctl cert revoke worker/gpu-7                          Now and later",
    "\n  rolloutctl cert revoke client/bob --issued-before now        Only earlier ones",
    "\n  rolloutctl cert revoke --issued-before 2026-11-27T09:30:00Z  Everyone's"
))]
pub(crate) struct RevokeArgs {
    /// Identity as ROLE/NAME, such as worker/gpu-7. Without it, the command revokes everyone's
    /// certificates; requires --issued-before
    #[arg(group = "which", value_name = "ROLE/NAME")]
    pub(in crate::rolloutctl) identity: Option<String>,
    /// Revoke only certificates whose validity begins before this time: `now`, or like
    /// 2026-11-27T09:30:00Z. Without it, the identity stays refused, whatever certificate it gets,
    /// until `cert unrevoke`
    #[arg(long, group = "which", value_name = "TIME", value_parser = parse_instant)]
    pub(in crate::rolloutctl) issued_before: Option<u64>,
    /// Reason, shown by `cert revocations`
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Revoke even if that locks out you or a member of the cluster
    #[arg(long)]
    force: bool,
}

impl RevokeArgs {
    /// The request, without its number.
    fn request(&self) -> v1::RevokeRequest {
        v1::RevokeRequest {
            request: None,
            identity: self.identity.clone().unwrap_or_default(),
            issued_before_s: self.issued_before,
            reason: self.reason.clone(),
            force: self.force,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Revoked {
    /// Null for every identity.
    identity: Option<String>,
    /// Null for all of them.
    issued_before: Option<String>,
}

/// The affected certificates, in words: "certificates of worker/gpu-7 issued before 2026-11-27T09:30:00Z".
fn certificates(identity: Option<&str>, issued_before: Option<u64>) -> String {
    let whose = identity.unwrap_or("everyone");
    match issued_before {
        Some(before) => format!("certificates of {whose} issued before {}", format_instant(before)),
        None => format!("all certificates of {whose}"),
    }
}

impl Report for Revoked {
    const KIND: &'static str = "CertificatesRevoked";

    fn table(&self) -> String {
        let whose = self.identity.as_deref().unwrap_or("everyone");
        let which = match &self.issued_before {
            Some(before) => format!("certificates of {whose} issued before {before}"),
            None => format!("all certificates of {whose}"),
        };
        format!(
            "{which} are revoked: within 5 seconds, members in contact with the leader refuse them and close their connections\n"
        )
    }
}

impl Verb for RevokeArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.settings()?.client(None)?;
        let request = |id| v1::RevokeRequest { request: Some(id), ..self.request() };
        numbered(
            &client,
            "revoke certificates",
            globals.again,
            request,
            |channel, request| async move { services::certificates(channel).revoke(request).await },
        )
        .await?;
        let issued_before = self.issued_before.map(format_instant);
        output::emit(globals.format, &Revoked { identity: self.identity, issued_before })
    }
}

impl Checked for RevokeArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        one(&self.identity.as_deref().unwrap_or("everyone"), &self.request())
    }
}

impl Planned for RevokeArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = certificates(self.identity.as_deref(), self.issued_before);
        plans(reader, &[self.identity], Some(&would)).await
    }
}

/// Plans the revocation of the certificates of each identity, or with `None` in `revoked`, its withdrawal.
pub(super) async fn plans(
    reader: &Reader,
    identities: &[Option<String>],
    revoked: Option<&str>,
) -> anyhow::Result<Plan> {
    let answer = reader
        .client
        .with_leader_opts("list revocations", CallOptions::read(), |channel| async move {
            services::certificates(channel).list_revocations(v1::ListRevocationsRequest {}).await
        })
        .await?;
    let plan = |identity: &Option<String>| {
        revocation_plan(&answer.revocations, identity.as_deref(), revoked)
    };
    Ok(Plan::of_all(identities.iter().map(plan).collect()))
}

/// `revoked` has the certificates to revoke; None: those of the identity are to be accepted again.
fn revocation_plan(all: &[v1::Revocation], identity: Option<&str>, revoked: Option<&str>) -> Plan {
    let whose = identity.unwrap_or("everyone");
    let now = match all.iter().find(|there| there.identity == identity.unwrap_or_default()) {
        Some(there) => {
            let which = certificates(identity, there.issued_before_s);
            format!("{which} are revoked")
        }
        None => format!("no certificates of {whose} are revoked"),
    };
    match revoked {
        Some(which) => Plan::new(format!("revoke {which}"), now),
        None => Plan::new(format!("accept the certificates of {whose} again"), now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Revoked {
            identity: Some("worker/gpu-7".into()),
            issued_before: Some("2026-11-27T09:30:00Z".into()),
        };
        crate::golden::report("cert-revoke.txt", &report);
    }
}

//! `rolloutctl cert revoke` and `cert unrevoke`: identities whose certificates every member refuses.
//!
//! Invariant: a revocation that locks out the caller is refused unless `--force` is given; the cluster checks it.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::instant::{parse_instant, shown};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::dry_run::planned;
use crate::rolloutctl::each::each;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Whose certificates.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("which").required(true).multiple(true)))]
pub(crate) struct RevokeArgs {
    /// Identity as ROLE/NAME, such as worker/gpu-7; one at a time, so that --force overrides the
    /// check of that identity alone [default: all identities]
    #[arg(group = "which", value_name = "ROLE/NAME")]
    pub(in crate::rolloutctl) identity: Option<String>,
    /// Only certificates whose validity begins before this time: `now`, or like
    /// 2026-11-27T09:30:00Z [default: all, including future ones]
    #[arg(long, group = "which", value_name = "TIME", value_parser = parse_instant)]
    pub(in crate::rolloutctl) issued_before: Option<u64>,
    /// Reason, shown by `cert revocations`
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Revoke even if it shuts out you or a member of the cluster
    #[arg(long)]
    force: bool,
}

/// Whose certificates.
#[derive(Debug, clap::Args)]
pub(crate) struct UnrevokeArgs {
    /// Identity as ROLE/NAME, or several
    #[arg(value_name = "ROLE/NAME", required_unless_present = "everyone")]
    pub(in crate::rolloutctl) identities: Vec<String>,
    /// Withdraw the revocation of everyone's certificates
    #[arg(long, conflicts_with = "identities")]
    pub(in crate::rolloutctl) everyone: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Revoked {
    /// Null for every identity.
    identity: Option<String>,
    /// Null for all of them.
    issued_before: Option<String>,
}

#[derive(Serialize)]
struct Unrevoked {
    /// Null for every identity.
    identity: Option<String>,
}

/// The affected certificates, in words: "certificates of worker/gpu-7 issued before 2026-11-27T09:30:00Z".
pub(in crate::rolloutctl) fn certificates(
    identity: Option<&str>,
    issued_before: Option<u64>,
) -> String {
    let whose = identity.unwrap_or("everyone");
    match issued_before {
        Some(before) => format!("certificates of {whose} issued before {}", shown(before)),
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

impl Report for Unrevoked {
    const KIND: &'static str = "RevocationWithdrawn";

    fn table(&self) -> String {
        let whose = self.identity.as_deref().unwrap_or("everyone");
        format!("certificates of {whose} are accepted again\n")
    }
}

impl Verb for RevokeArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Revokes them.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.settings()?.client(None)?;
        let request = |id| v1::RevokeRequest {
            request: Some(id),
            identity: self.identity.clone().unwrap_or_default(),
            issued_before_s: self.issued_before,
            reason: self.reason,
            force: self.force,
        };
        numbered(
            &client,
            "revoke certificates",
            globals.again,
            request,
            |channel, request| async move { services::certificates(channel).revoke(request).await },
        )
        .await?;
        let issued_before = self.issued_before.map(shown);
        output::emit(globals.format, &Revoked { identity: self.identity, issued_before })
    }
}

impl Verb for UnrevokeArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Accepts the certificates of each identity again.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        if self.everyone {
            return withdraw(&globals.connect, globals.format, None, globals.again).await;
        }
        each(self.identities, globals.format, globals.again, async |identity, format| {
            withdraw(&globals.connect, format, Some(identity), globals.again).await
        })
        .await
    }
}

async fn withdraw(
    connect: &ConnectArgs,
    format: Format,
    identity: Option<String>,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let client = connect.settings()?.client(None)?;
    let whose = identity.clone().unwrap_or_default();
    let request = |id| v1::WithdrawRequest { request: Some(id), identity: whose };
    numbered(&client, "withdraw a revocation", again, request, |channel, request| async move {
        services::certificates(channel).withdraw(request).await
    })
    .await?;
    output::emit(format, &Unrevoked { identity })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_match_the_golden_files() {
        let report = Revoked {
            identity: Some("worker/gpu-7".into()),
            issued_before: Some("2026-11-27T09:30:00Z".into()),
        };
        crate::golden::report("cert-revoke.txt", &report);
        crate::golden::report("cert-unrevoke.txt", &Unrevoked { identity: None });
    }
}

//! `rolloutctl cert unrevoke`: members accept the certificates of an identity again.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::revoke::plans;
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, one, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Whose certificates.
#[derive(Debug, clap::Args)]
pub(crate) struct UnrevokeArgs {
    /// Identity as ROLE/NAME, or several
    #[arg(value_name = "ROLE/NAME", required_unless_present = "everyone")]
    pub(in crate::rolloutctl) identities: Vec<String>,
    /// Withdraw the revocation that names no identity; revocations of single identities stay
    #[arg(long, conflicts_with = "identities")]
    pub(in crate::rolloutctl) everyone: bool,
}

#[derive(Serialize)]
struct Unrevoked {
    /// Null for every identity.
    identity: Option<String>,
}

impl Report for Unrevoked {
    const KIND: &'static str = "RevocationWithdrawn";

    fn table(&self) -> String {
        let whose = self.identity.as_deref().unwrap_or("everyone");
        format!("certificates of {whose} are accepted again\n")
    }
}

impl Verb for UnrevokeArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Accepts the certificates of each identity again.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        if self.everyone {
            return withdraw(&globals.connect, globals.format, None, globals.again).await;
        }
        for_each_name(self.identities, globals.format, globals.again, async |identity, format| {
            withdraw(&globals.connect, format, Some(identity), globals.again).await
        })
        .await
    }
}

impl Checked for UnrevokeArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let request =
            |identity: &str| v1::WithdrawRequest { request: None, identity: identity.to_owned() };
        match self.everyone {
            true => one(&"everyone", &request("")),
            false => for_each(&self.identities, |identity| request(identity)),
        }
    }
}

impl Planned for UnrevokeArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let identities: Vec<Option<String>> = match self.everyone {
            true => vec![None],
            false => self.identities.into_iter().map(Some).collect(),
        };
        plans(reader, &identities, None).await
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
    fn output_matches_the_golden_file() {
        crate::golden::report("cert-unrevoke.txt", &Unrevoked { identity: None });
    }
}

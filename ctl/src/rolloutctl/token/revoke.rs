//! `rolloutctl token revoke NAME...`: refuses the token from now on. Certificates that were issued for it stay valid,
//! and members renew them.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which token.
#[derive(Debug, clap::Args)]
pub(crate) struct RevokeArgs {
    /// The token's name, or several
    #[arg(value_name = "NAME", required = true)]
    pub(in crate::rolloutctl) names: Vec<String>,
}

#[derive(Serialize)]
struct Revoked {
    name: String,
}

impl Report for Revoked {
    const KIND: &'static str = "TokenRevoked";

    fn table(&self) -> String {
        format!("token {} is revoked\n", self.name)
    }
}

impl Verb for RevokeArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.names, globals.format, globals.again, async |name, format| {
            revoke(&globals.connect, format, name, globals.again).await
        })
        .await
    }
}

impl Checked for RevokeArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        for_each(&self.names, |name| v1::RevokeTokenRequest { request: None, name: name.clone() })
    }
}

impl Planned for RevokeArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        super::plans(reader, &self.names, "revoke token").await
    }
}

async fn revoke(
    connect: &ConnectArgs,
    format: Format,
    name: String,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let client = connect.settings()?.client(None)?;
    let request = |id| v1::RevokeTokenRequest { request: Some(id), name: name.clone() };
    numbered(&client, "revoke a join token", again, request, |channel, request| async move {
        services::tokens(channel).revoke_token(request).await
    })
    .await?;
    output::emit(format, &Revoked { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Revoked { name: "rack-7".into() };
        crate::golden::report("token-revoke.txt", &report);
    }
}

//! `rolloutctl key revoke ID...`: no member accepts the key any more.

use rollout_proto::{ClientError, ErrorCode, services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which key.
#[derive(Debug, clap::Args)]
pub(crate) struct RevokeArgs {
    /// The key's id, or several: the 8 characters between `rk_` and the next `_`
    #[arg(value_name = "ID", required = true)]
    pub(in crate::rolloutctl) ids: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Revoked {
    key_id: String,
}

impl Report for Revoked {
    const KIND: &'static str = "KeyRevoked";

    fn table(&self) -> String {
        format!("key {} is revoked\n", self.key_id)
    }
}

impl Verb for RevokeArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.ids, globals.format, globals.again, async |id, format| {
            revoke(&globals.connect, format, id, globals.again).await
        })
        .await
    }
}

impl Checked for RevokeArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        for_each(&self.ids, |id| v1::RevokeKeyRequest { request: None, id: id.clone() })
    }
}

impl Planned for RevokeArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        Plan::of_each(&self.ids, async |id| {
            let now = match super::fetch(&reader.client, id).await {
                Ok(key) => format!("{} is a {} of namespace {}", key.name, key.role, key.namespace),
                Err(ClientError::Rpc(error)) if error.code == ErrorCode::ApiKeyNotFound => {
                    "it does not exist".to_owned()
                }
                Err(error) => return Err(error.into()),
            };
            Ok(Plan::new(format!("revoke API key {id}"), now))
        })
        .await
    }
}

async fn revoke(
    connect: &ConnectArgs,
    format: Format,
    id: String,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let client = connect.settings()?.client(None)?;
    let request = |number| v1::RevokeKeyRequest { request: Some(number), id: id.clone() };
    numbered(&client, "revoke an API key", again, request, |channel, request| async move {
        services::keys(channel).revoke_key(request).await
    })
    .await?;
    output::emit(format, &Revoked { key_id: id })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        crate::golden::report("key-revoke.txt", &Revoked { key_id: "aB3dE6gH".into() });
    }
}

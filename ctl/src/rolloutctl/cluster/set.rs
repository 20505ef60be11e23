//! `rolloutctl cluster set NAME VALUE`: changes a setting of the cluster.
//!
//! Invariant: a repeat of the request takes no value back that somebody has set since.

use rollout_proto::{services, v1};

use super::settings::Setting;
use crate::connect::ConnectArgs;
use crate::output::{self, Format};
use crate::rolloutctl::request::{Numbered, RequestName};

/// Which setting, and what it becomes.
#[derive(Debug, clap::Args)]
pub(crate) struct SetArgs {
    /// The setting's name, as `cluster settings` shows it
    #[arg(value_name = "NAME", value_parser = ["cordon-after"])]
    pub(in crate::rolloutctl) name: String,
    /// The new value
    #[arg(value_name = "VALUE")]
    pub(in crate::rolloutctl) value: u32,
}

/// Sets it, and prints it as it is then.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: SetArgs,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let client = connect.client(None)?;
    let number = Numbered::new(&client, again).await?;
    let SetArgs { name, value } = args;
    let request = v1::SetSettingRequest { request: Some(number.id()), name, value };
    let answer = client
        .with_leader("change a setting", |channel| {
            let request = request.clone();
            async move { services::cluster(channel).set_setting(request).await }
        })
        .await
        .map_err(|error| number.failed(error))?;
    output::emit(format, &Setting::from(answer.setting.unwrap_or_default()))
}

//! `rolloutctl cluster set NAME VALUE`: changes a setting of the cluster.
//!
//! Invariant: a repeat of the request takes no value back that somebody has set since.

use rollout_proto::{services, v1};

use super::settings::Setting;
use crate::output;
use crate::rolloutctl::dry_run::{Checked, PlannedRequest, one, planned};
use crate::rolloutctl::request::Numbered;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

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

impl Verb for SetArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Sets it, and prints it as it is then.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.client(None)?;
        let number = Numbered::new(&client, globals.again).await?;
        let SetArgs { name, value } = self;
        let request = v1::SetSettingRequest { request: Some(number.id()), name, value };
        let answer = client
            .with_leader("change a setting", |channel| {
                let request = request.clone();
                async move { services::cluster(channel).set_setting(request).await }
            })
            .await
            .map_err(|error| number.failed(error))?;
        output::emit(globals.format, &Setting::from(answer.setting.unwrap_or_default()))
    }
}

impl Checked for SetArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let (name, value) = (self.name.clone(), self.value);
        one(&self.name, &v1::SetSettingRequest { request: None, name, value })
    }
}

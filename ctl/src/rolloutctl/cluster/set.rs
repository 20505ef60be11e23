//! `rolloutctl cluster set NAME VALUE`: changes a setting of the cluster.
//!
//! Invariant: a repeat of the request takes no value back that somebody has set since.

use clap::builder::PossibleValuesParser;
use rollout_ledger::SettingOp;
use rollout_proto::{services, v1};

use super::settings::Setting;
use crate::output;
use crate::rolloutctl::dry_run::{Checked, Plan, Planned, PlannedRequest, Reader, one, planned};
use crate::rolloutctl::request::Numbered;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which setting, and what it becomes.
#[derive(Debug, clap::Args)]
pub(crate) struct SetArgs {
    /// The setting's name, as `cluster settings` shows it
    #[arg(value_name = "NAME", value_parser = PossibleValuesParser::new(SettingOp::names()))]
    pub(in crate::rolloutctl) name: String,
    /// The new value; `cluster settings` shows the allowed range
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

impl Planned for SetArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let there = super::settings::fetch(&reader.client).await?;
        Ok(plan(&there, &self))
    }
}

fn plan(there: &v1::ListSettingsResponse, args: &SetArgs) -> Plan {
    let SetArgs { name, value } = args;
    let setting = there.settings.iter().find(|setting| setting.name == *name);
    let now = setting.map_or("the cluster does not have it".to_owned(), |setting| {
        format!("it is {} (default {})", setting.value, setting.default_value)
    });
    Plan::new(format!("set {name} to {value}"), now)
}

#[cfg(test)]
pub(in crate::rolloutctl) mod tests {
    use super::*;

    /// The settings of a cluster of this version, which has only one.
    pub(in crate::rolloutctl) fn one_setting(version: u32) -> v1::ListSettingsResponse {
        let setting = v1::Setting {
            name: "cordon-after".into(),
            value: 3,
            default_value: 3,
            min: 1,
            max: 20,
            meaning: String::new(),
            needs_version: 3,
        };
        v1::ListSettingsResponse { settings: vec![setting], version, ..Default::default() }
    }

    #[test]
    fn a_plan_says_what_the_setting_is() {
        let set = |name: &str| SetArgs { name: name.into(), value: 5 };
        let there = plan(&one_setting(3), &set("cordon-after"));
        assert_eq!(there, Plan::new("set cordon-after to 5", "it is 3 (default 3)"));
        let missing = plan(&one_setting(3), &set("cordon-before"));
        let expected = Plan::new("set cordon-before to 5", "the cluster does not have it");
        assert_eq!(missing, expected);
    }
}

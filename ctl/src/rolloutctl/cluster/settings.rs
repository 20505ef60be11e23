//! `rolloutctl cluster settings`: every setting of the cluster.
//!
//! Absent: settings of one member or worker, which are in its configuration file: `config view` shows those.

use rollout_proto::{CallOptions, Client, ClientError, services, v1};
use serde::Serialize;

use crate::output::{self, Report, Table};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// A setting as it is printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Setting {
    name: String,
    value: u32,
    default: u32,
    min: u32,
    max: u32,
    meaning: String,
}

impl From<v1::Setting> for Setting {
    fn from(wire: v1::Setting) -> Self {
        Self {
            name: wire.name,
            value: wire.value,
            default: wire.default_value,
            min: wire.min,
            max: wire.max,
            meaning: wire.meaning,
        }
    }
}

impl Report for Setting {
    const KIND: &'static str = "Setting";

    fn table(&self) -> String {
        format!("{} is {} (default {})\n", self.name, self.value, self.default)
    }
}

#[derive(Serialize)]
struct SettingList {
    settings: Vec<Setting>,
}

impl Report for SettingList {
    const KIND: &'static str = "SettingList";

    fn table(&self) -> String {
        let mut table = Table::new(&["NAME", "VALUE", "DEFAULT", "ALLOWED", "MEANING"]);
        for setting in &self.settings {
            table.row([
                setting.name.clone(),
                setting.value.to_string(),
                setting.default.to_string(),
                format!("{} to {}", setting.min, setting.max),
                setting.meaning.clone(),
            ]);
        }
        table.to_string()
    }
}

/// Asks the leader for them.
pub(in crate::rolloutctl) async fn fetch(
    client: &Client,
) -> Result<v1::ListSettingsResponse, ClientError> {
    client
        .with_leader_opts("list settings", CallOptions::read(), |channel| async move {
            services::cluster(channel).list_settings(v1::ListSettingsRequest {}).await
        })
        .await
}

/// No arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct SettingsArgs {}

impl Verb for SettingsArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let answer = fetch(&globals.connect.client(None)?).await?;
        let settings = answer.settings.into_iter().map(Setting::from).collect();
        output::emit(globals.format, &SettingList { settings })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cordon_after() -> Setting {
        Setting::from(v1::Setting {
            name: "cordon-after".into(),
            value: 5,
            default_value: 3,
            min: 1,
            max: 20,
            meaning: "failures in a row after which the cluster cordons a slot".into(),
            needs_version: 3,
        })
    }

    #[test]
    fn a_list_shows_each_setting_with_its_default_and_its_meaning() {
        let settings = vec![cordon_after()];
        crate::golden::report("cluster-settings.txt", &SettingList { settings });
    }

    #[test]
    fn a_change_shows_the_setting_as_it_is_then() {
        crate::golden::report("cluster-set.txt", &cordon_after());
    }
}

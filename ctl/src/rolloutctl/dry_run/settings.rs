//! Plans of changes of the cluster's settings.

use rollout_proto::v1;

use super::{Plan, Planned, Reader};
use crate::rolloutctl::cluster::set::SetArgs;
use crate::rolloutctl::cluster::settings;

impl Planned for SetArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let there = settings::ask(&reader.client).await?;
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
pub(super) mod tests {
    use super::*;

    /// The settings of a cluster of this version, which has only one.
    pub(in crate::rolloutctl::dry_run) fn one_setting(version: u32) -> v1::ListSettingsResponse {
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
        assert_eq!(missing.now, "the cluster does not have it");
    }
}

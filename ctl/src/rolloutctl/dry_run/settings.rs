//! Plans of changes of the cluster's settings.

use rollout_proto::v1;

use super::{Plan, Planned, Reader};
use crate::rolloutctl::Failure;
use crate::rolloutctl::cluster::set::SetArgs;
use crate::rolloutctl::cluster::settings;

impl Planned for SetArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let there = settings::ask(&reader.client).await?;
        Ok(plan(&there, &self)?)
    }
}

/// With the exit statuses of the cluster's refusals: 1 for a value out of bounds, 5 for a version that is too low.
fn plan(there: &v1::ListSettingsResponse, args: &SetArgs) -> Result<Plan, Failure> {
    let SetArgs { name, value } = args;
    let Some(setting) = there.settings.iter().find(|setting| setting.name == *name) else {
        return Err(Failure::failed(format!("the cluster has no setting {name}")));
    };
    if setting.needs_version > there.version {
        let (needs, version) = (setting.needs_version, there.version);
        let text = format!(
            "{name} needs cluster version {needs}, the cluster's is {version}: run `rolloutctl cluster upgrade` first"
        );
        return Err(Failure::conflict(text));
    }
    let v1::Setting { min, max, .. } = setting;
    if !(min..=max).contains(&value) {
        return Err(Failure::failed(format!("{name} cannot be {value}: set {min} to {max}")));
    }
    let now = format!("it is {} (default {})", setting.value, setting.default_value);
    Ok(Plan::new(format!("set {name} to {value}"), now))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::rolloutctl::exit;

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

    fn set(name: &str, value: u32) -> SetArgs {
        SetArgs { name: name.into(), value }
    }

    #[test]
    fn a_plan_says_what_the_setting_is_and_refuses_what_the_cluster_would() {
        let fine = plan(&one_setting(3), &set("cordon-after", 5)).unwrap();
        assert_eq!(fine, Plan::new("set cordon-after to 5", "it is 3 (default 3)"));
        for (version, name, value, code) in [
            (3, "cordon-after", 0, 1),
            (3, "cordon-after", 21, 1),
            (3, "cordon-before", 5, 1),
            (2, "cordon-after", 5, 5),
        ] {
            let refused = plan(&one_setting(version), &set(name, value)).unwrap_err();
            assert_eq!(exit::code(&refused.into()), code, "{name} {value} in version {version}");
        }
    }
}

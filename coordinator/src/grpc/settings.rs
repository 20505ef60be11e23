//! Settings of the cluster: a list of them, and their change.
//!
//! *Invariant:* a change needs an administrator's certificate for all namespaces, because it applies to the slots of each.
//! Absent: names, meanings, bounds and effects of settings, which the ledger has.

use super::check_every_namespace;
use super::cluster::ClusterService;
use crate::grpc::convert::invalid;
use crate::leader::ledger_read::ReadLedger;
use crate::observe::audit;
use rollout_ledger::{Ledger, OpKind, SCHEDULING_VERSION, SettingOp, SettingView};
use rollout_proto::{Identity, RpcError, v1};

fn out(view: SettingView) -> v1::Setting {
    v1::Setting {
        name: view.name.into(),
        value: view.value,
        default_value: view.default,
        min: view.min,
        max: view.max,
        meaning: view.meaning.into(),
        needs_version: SCHEDULING_VERSION,
    }
}

fn all(ledger: &Ledger) -> Vec<v1::Setting> {
    ledger.settings().views().into_iter().map(out).collect()
}

/// The change that a request asks for.
pub(super) fn change_in(name: &str, value: u32) -> Result<SettingOp, RpcError> {
    SettingOp::of_name(name, value).ok_or_else(|| {
        let names: Vec<&str> = SettingOp::names().collect();
        let name: String = name.chars().take(64).collect();
        invalid(format!("there is no setting {name:?}; the settings are: {}", names.join(", ")))
    })
}

impl ClusterService {
    pub(super) async fn settings(&self) -> Result<v1::ListSettingsResponse, RpcError> {
        self.0.reading().await?;
        let (settings, version) = self.0.read_ledger(|l| (all(l), l.version()));
        let header = Some(self.0.header());
        Ok(v1::ListSettingsResponse { header, settings, version })
    }

    pub(super) async fn change_setting(
        &self,
        identity: &Identity,
        r: v1::SetSettingRequest,
    ) -> Result<v1::SetSettingResponse, RpcError> {
        audit::about("setting", &r.name);
        check_every_namespace(identity)?;
        let op = change_in(&r.name, r.value)?;
        let id = self.0.request_in(identity, r.request.as_ref())?;
        self.0.apply(Some(id), OpKind::Setting(op)).await?;
        tracing::info!(by = %identity, setting = op.name(), value = r.value, "a setting is set");
        let settings = self.0.node.ledger(all);
        let setting = settings.into_iter().find(|setting| setting.name == op.name());
        Ok(v1::SetSettingResponse { header: Some(self.0.header()), setting })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::ErrorCode;

    #[test]
    fn a_setting_is_changed_by_its_name_and_an_unknown_name_is_refused_with_all_names() {
        assert_eq!(change_in("cordon-after", 5).expect("known"), SettingOp::CordonAfter(5));
        let error = change_in("cordon_after", 5).expect_err("unknown");
        assert_eq!(error.code, ErrorCode::InvalidArgument);
        assert!(error.message.contains("cordon-after"), "{}", error.message);
    }
}

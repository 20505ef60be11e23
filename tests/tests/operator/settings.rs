//! Settings of the cluster: each member has them after a restart, and a repeated request does not undo a later change.

use anyhow::{Context, Result, ensure};
use rollout_proto::{Client, ClientConfig};
use rollout_tests::{Fleet, FleetOptions};
use serde_json::Value;

/// The leader's value of the setting.
fn cordon_after(fleet: &Fleet) -> Result<Value> {
    let list = fleet.ctl_json(&["cluster", "settings"])?;
    let mut settings = list["settings"].as_array().into_iter().flatten();
    let found = settings.find(|setting| setting["name"] == "cordon-after");
    found.cloned().with_context(|| format!("no such setting in {list}"))
}

/// The number of a new request.
fn number(fleet: &Fleet) -> Result<String> {
    let endpoints = fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
    let client = Client::new(ClientConfig::new(endpoints, fleet.security("admin", "operator")))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let session = runtime.block_on(client.open_session("a test"))?;
    Ok(format!("{}.1", session.id()))
}

#[test]
fn a_setting_is_kept_by_every_member_and_a_repeat_takes_no_later_value_back() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let set = ["cluster", "set", "cordon-after"];
    let before = cordon_after(&fleet)?;
    ensure!(before["value"] == 3 && before["default"] == 3, "{before}");
    let planned = fleet.ctl(&[&set[..], &["5", "--dry-run"]].concat())?;
    ensure!(planned.status.success(), "{planned:?}");
    for bad in ["0", "21"] {
        for how in [&[] as &[&str], &["--dry-run"]] {
            let refused = fleet.ctl(&[&set[..], &[bad], how].concat())?;
            let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
            ensure!(refused.status.code() == Some(1), "{bad} {how:?}: {refused:?}");
            ensure!(
                stderr.contains(&format!("cordon-after cannot be {bad}: set 1 to 20")),
                "{stderr}"
            );
        }
    }
    ensure!(cordon_after(&fleet)?["value"] == 3, "nothing was changed");

    let id = number(&fleet)?;
    let numbered = [&set[..], &["5", "--request-id", id.as_str()]].concat();
    let now = fleet.ctl_json(&numbered)?;
    ensure!(now["value"] == 5, "{now}");
    let now = fleet.ctl_json(&[&set[..], &["7"]].concat())?;
    ensure!(now["value"] == 7, "{now}");
    let repeated = fleet.ctl_json(&numbered)?;
    ensure!(repeated["value"] == 7, "the repeated request took effect again: {repeated}");
    // After this every member has applied both changes, whichever answers.
    fleet.verify()?;
    let events = fleet.ctl(&["events", "--kind", "setting_changed", "-o", "jsonl"])?;
    let events = String::from_utf8_lossy(&events.stdout).into_owned();
    for change in ["changed from 3 to 5", "changed from 5 to 7"] {
        ensure!(events.contains(change), "no {change:?} in {events}");
    }
    ensure!(events.lines().count() == 2, "{events}");

    for name in fleet.member_names() {
        fleet.kill_member(&name);
    }
    for name in fleet.member_names() {
        fleet.start_member(&name)?;
    }
    fleet.leader();
    ensure!(cordon_after(&fleet)?["value"] == 7);
    fleet.verify()?;
    fleet.passed()
}

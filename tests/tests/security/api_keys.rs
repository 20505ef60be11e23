//! API keys as administrators manage them.

use anyhow::{Context, Result, ensure};
use rollout_proto::ApiKey;
use rollout_tests::{Fleet, FleetOptions};

/// The ids that `key list` shows.
fn listed(fleet: &Fleet) -> Result<Vec<String>> {
    let list = fleet.ctl_json(&["key", "list", "-A"])?;
    let keys = list["keys"].as_array().with_context(|| format!("no keys in {list}"))?;
    Ok(keys.iter().filter_map(|key| key["keyId"].as_str().map(str::to_owned)).collect())
}

#[test]
fn a_key_is_shown_once_outlives_its_members_processes_and_ends_when_it_is_revoked() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let create = ["key", "create", "ci", "--expires", "30d", "--requests-per-second", "5"];
    let plan = fleet.ctl_json(&[&create[..], &["--dry-run"]].concat())?;
    ensure!(plan["checked"] == true && listed(&fleet)?.is_empty(), "{plan}");
    let made = fleet.ctl_json(&create)?;
    let text = made["apiKey"].as_str().with_context(|| format!("no key in {made}"))?;
    let key: ApiKey = text.parse()?;
    ensure!(made["keyId"] == key.id() && made["role"] == "client", "{made}");
    let secret = &text[text.len() - 43..];

    for verb in [&["list"][..], &["describe", key.id()]] {
        for format in ["wide", "json"] {
            let shown = fleet.ctl(&[&["key"], verb, &["-o", format]].concat())?;
            let stdout = String::from_utf8_lossy(&shown.stdout).into_owned();
            ensure!(stdout.contains(key.id()) && !stdout.contains(secret), "{verb:?}: {stdout}");
        }
    }
    ensure!(!fleet.logs().contains(secret), "a log has the secret");
    let missing = fleet.ctl(&["key", "create", "ci", "--namespace", "nowhere"])?;
    ensure!(missing.status.code() == Some(4), "{missing:?}");

    for name in fleet.member_names() {
        fleet.kill_member(&name);
    }
    for name in fleet.member_names() {
        fleet.start_member(&name)?;
    }
    fleet.leader();
    ensure!(listed(&fleet)? == [key.id()]);

    let revoked = fleet.ctl(&["key", "revoke", key.id()])?;
    ensure!(revoked.status.success(), "{revoked:?}");
    ensure!(listed(&fleet)?.is_empty());
    for verb in ["revoke", "describe"] {
        let gone = fleet.ctl(&["key", verb, key.id()])?;
        let stderr = String::from_utf8_lossy(&gone.stderr).into_owned();
        ensure!(gone.status.code() == Some(4) && stderr.contains("RO-3017"), "{verb}: {gone:?}");
    }
    fleet.verify()?;
    fleet.passed()
}

//! The leader checks dry runs: each is refused as the command would be, and changes nothing.

use anyhow::{Result, ensure};
use rollout_tests::{Fleet, FleetOptions};

#[test]
fn a_refused_dry_run_ends_as_the_command_does_and_a_granted_one_changes_nothing() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let team = ["namespace", "set-quota", "team", "--create", "--runs-max", "3"];
    let plan = fleet.ctl_json(&[&team[..], &["--dry-run"]].concat())?;
    ensure!(plan["checked"] == true, "the leader has not checked it: {plan}");
    let missing = fleet.ctl(&["namespace", "describe", "team"])?;
    ensure!(missing.status.code() == Some(4), "the dry run made it: {missing:?}");

    for (line, code) in [
        ("run pause nobody", 4),
        ("run delete nobody --yes", 4),
        ("run retry nobody --failed", 4),
        ("worker cordon nobody", 4),
        ("worker drain nobody", 4),
        ("namespace set-quota team --runs-max 3", 4),
        ("namespace set-quota default", 2),
        ("cluster set cordon-after 0", 1),
        ("rendezvous close not/a/name --yes", 1),
        ("barrier abort nobody waits", 4),
        ("dataset create not/a/name --uri x --samples 5", 1),
        ("checkpoint abort nobody 3", 4),
        ("checkpoint label nobody 3 best", 4),
        ("token revoke nobody", 4),
        ("key revoke nobody", 4),
        ("cert unrevoke worker/nobody", 4),
        ("cert revoke admin/operator", 6),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let dry = fleet.ctl(&[&words[..], &["--dry-run"]].concat())?;
        let real = fleet.ctl(&words)?;
        ensure!(real.status.code() == Some(code), "{line}: {real:?}");
        ensure!((dry.status, &dry.stderr) == (real.status, &real.stderr), "{line}: {dry:?}");
        ensure!(dry.stdout.is_empty(), "{line}: a refused dry run has no plan: {dry:?}");
    }

    // Each name is checked, and the worst status is that of the command.
    let several = fleet.ctl(&["run", "cancel", "nobody", "nothing", "--dry-run"])?;
    let stderr = String::from_utf8_lossy(&several.stderr).into_owned();
    ensure!(several.status.code() == Some(4), "{several:?}");
    ensure!(stderr.contains("nobody: ") && stderr.contains("nothing: "), "{stderr}");

    // Membership is planned from what can be read.
    let plan = fleet.ctl_json(&["leader", "transfer", "--dry-run"])?;
    ensure!(plan["checked"] == false, "{plan}");
    fleet.verify()?;
    fleet.passed()
}

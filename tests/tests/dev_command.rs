//! `rollout dev` as people use it: in the background, in a directory with a space, a second time, and its logs.

use anyhow::{Result, ensure};
use rollout_tests::{output, program};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(150);

fn dev(root: &Path, args: &[&str]) -> Result<Output> {
    let mut command = program("rollout")?;
    command.env_remove("ROLLOUT_CONTEXT").env("XDG_STATE_HOME", root.join("state"));
    command.arg("dev").args(args).arg("--dir").arg(root.join("a b"));
    output(command, PATIENCE)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Stops the cluster, however the test ends.
struct Stopped<'a>(&'a Path);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let _ = dev(self.0, &["stop"]);
    }
}

#[test]
fn a_local_cluster_is_found_again_and_its_commands_may_be_pasted() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let stopped = Stopped(dir.path());
    let flags = ["--detach", "--members", "1", "--workers", "1", "--slots", "1"];
    let first = dev(dir.path(), &flags)?;
    ensure!(first.status.success(), "{first:?}");
    let second = dev(dir.path(), &flags)?;
    ensure!(second.status.success(), "{second:?}");
    let commands = |said: &Output| {
        let said = text(&said.stderr);
        said.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    ensure!(commands(&first) == commands(&second), "{first:?} {second:?}");

    // As they are printed, in a shell; the programs are where this test finds them.
    let rolloutctl = program("rolloutctl")?;
    let pasted: String = commands(&second)
        .iter()
        .filter(|line| line.contains("export ") || line.contains("status"))
        .map(|line| format!("{}\n", line.trim()))
        .collect();
    let script = format!(
        "rolloutctl() {{ \"$PROGRAM\" \"$@\"; }}\nset -e\n{pasted}test -f \"$ROLLOUT_CONTEXT\"\n"
    );
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).env("PROGRAM", rolloutctl.get_program());
    let said = output(shell, PATIENCE)?;
    ensure!(said.status.success() && text(&said.stdout).contains("c1"), "{said:?}");

    let listed = text(&dev(dir.path(), &["list"])?.stdout);
    ensure!(listed.contains("a b") && listed.contains("ready"), "{listed}");
    let logs = dev(dir.path(), &["logs", "c1", "--lines", "3"])?;
    ensure!(logs.status.success() && !logs.stdout.is_empty(), "{logs:?}");
    let unknown = dev(dir.path(), &["logs", "c9"])?;
    ensure!(text(&unknown.stderr).contains("known are c1, dev, w1"), "{unknown:?}");
    drop(stopped);
    let listed = text(&dev(dir.path(), &["list"])?.stdout);
    ensure!(listed.contains("stopped"), "{listed}");
    Ok(())
}

//! Shell completion offers the cluster's names, and offers nothing if it cannot ask the cluster.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, output};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// The bash script that completes a line, given in its arguments.
const PRESSED: &str = r#"
source <(rolloutctl completion bash)
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
_clap_complete_rolloutctl rolloutctl "${COMP_WORDS[COMP_CWORD]}"
[ ${#COMPREPLY[@]} = 0 ] || printf '%s\n' "${COMPREPLY[@]}"
"#;

/// Bash's completions of the line.
fn completed(fleet: &Fleet, config: &Path, words: &[&str]) -> Result<Vec<String>> {
    let program = fleet.program("rolloutctl");
    let dir = Path::new(program.get_program()).parent().context("a directory")?;
    let mut path = dir.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut bash = Command::new("bash");
    bash.args(["-c", PRESSED, "bash", "rolloutctl"]).args(words);
    bash.env("PATH", path).env("XDG_CONFIG_HOME", config);
    let out = output(bash, PATIENCE)?;
    ensure!(out.status.success() && out.stderr.is_empty(), "{words:?}: {out:?}");
    Ok(String::from_utf8(out.stdout)?.lines().map(str::to_owned).collect())
}

#[test]
fn bash_completes_names_of_the_cluster_that_the_line_speaks_of_and_stays_silent_without_one()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    for name in ["evening", "eval", "nightly"] {
        Batch::submit(&fleet, name, 5, "")?.finish(&fleet)?;
    }
    let config = tempfile::tempdir()?;
    let (operator, user) = (fleet.path("operator.toml"), fleet.path("user.toml"));
    let as_operator = |words: &[&str]| {
        let context = ["--context", operator.to_str().unwrap_or_default()];
        completed(&fleet, config.path(), &[&context, words].concat())
    };
    ensure!(as_operator(&["run", "describe", "ev"])? == ["eval", "evening"]);
    ensure!(as_operator(&["item", "list", "n"])? == ["nightly"]);
    ensure!(as_operator(&["-n", "other", "run", "describe", "ev"])?.is_empty());
    ensure!(as_operator(&["workers", "drain", "w"])? == ["w1"]);
    ensure!(as_operator(&["member", "remove", "c"])? == ["c1", "c2", "c3"]);
    ensure!(as_operator(&["namespace", "describe", "d"])? == ["default"]);
    ensure!(as_operator(&["run", "list", "--namespace", "d"])? == ["default"]);
    ensure!(as_operator(&["worker", "unc"])? == ["uncordon"]);
    ensure!(as_operator(&["events", "--kind", "leader_"])? == ["leader_changed"]);

    // Contexts, from anywhere in the line; a name of one leads to its cluster.
    let kept = config.path().join("rollout");
    std::fs::create_dir_all(&kept)?;
    let context = std::fs::read_to_string(&operator)?;
    std::fs::write(kept.join("contexts.toml"), format!("[context.prod]\n{context}"))?;
    ensure!(completed(&fleet, config.path(), &["context", "show", "p"])? == ["prod"]);
    ensure!(completed(&fleet, config.path(), &["run", "list", "--context", "pro"])? == ["prod"]);

    // Without permission there are no completions, and without a cluster there are none either.
    let context = user.to_str().context("a path")?;
    let members = ["--context", context, "member", "describe", "c"];
    ensure!(completed(&fleet, config.path(), &members)?.is_empty());
    let begun = Instant::now();
    let nobody = ["-e", "127.0.0.1:9", "--insecure-plaintext", "run", "describe", "e"];
    ensure!(completed(&fleet, config.path(), &nobody)?.is_empty());
    ensure!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    fleet.passed()
}

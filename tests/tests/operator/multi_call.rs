//! The executable that contains all four programs: which one it runs as, and that it needs no other file.

use anyhow::{Context, Result, ensure};
use rollout_tests::{output, program};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(150);
const EXECUTABLE: &str = "rollout-programs";
const PROGRAMS: [&str; 4] = ["rollout", "rolloutctl", "rollout-worker", "rollout-coordinator"];

/// A folder that contains the executable and nothing else.
fn alone() -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let built = program(EXECUTABLE)?;
    let (from, to) = (Path::new(built.get_program()), folder.path().join(EXECUTABLE));
    // The folder may be on another disk than the build.
    if std::fs::hard_link(from, &to).is_err() {
        std::fs::copy(from, &to).context("the executable cannot be copied")?;
    }
    Ok(folder)
}

fn run(mut command: Command, words: &[&str]) -> Result<Output> {
    command.args(words).env("PATH", "");
    output(command, LIMIT)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether a list of the programs has a line for each.
fn lists_all(text: &str) -> bool {
    let words = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let first: Vec<String> = text.lines().filter_map(words).collect();
    PROGRAMS.iter().all(|name| first.iter().any(|word| word == name))
}

#[test]
fn a_link_or_the_first_argument_chooses_the_program() -> Result<()> {
    let folder = alone()?;
    let executable = folder.path().join(EXECUTABLE);
    for name in PROGRAMS {
        let link = folder.path().join(name);
        symlink(EXECUTABLE, &link)?;
        let own = text(&run(program(name)?, &["--version"])?.stdout);
        ensure!(own.starts_with(&format!("{name} ")), "{own}");
        // These commands are read from the arguments of the process, at fixed positions.
        for words in [&["--version"][..], &["--help"], &["snapshot", "--help"], &["mock-engine"]] {
            let expected = run(program(name)?, words)?;
            let linked = run(Command::new(&link), words)?;
            ensure!(linked == expected, "{name} {words:?}: {linked:?}, not {expected:?}");
            let chosen = run(Command::new(&executable), &[&[name], words].concat())?;
            ensure!(chosen == expected, "{name} {words:?}: {chosen:?}, not {expected:?}");
        }
    }
    Ok(())
}

#[test]
fn an_unknown_program_is_refused_with_the_names_of_all_four() -> Result<()> {
    let folder = alone()?;
    let executable = folder.path().join(EXECUTABLE);
    let unknown: [&[&str]; 3] = [&[], &["rollout-unknown", "--version"], &["--rollout"]];
    for words in unknown {
        let refused = run(Command::new(&executable), words)?;
        ensure!(refused.status.code() == Some(2) && refused.stdout.is_empty(), "{refused:?}");
        ensure!(lists_all(&text(&refused.stderr)), "{refused:?}");
    }
    let help = run(Command::new(&executable), &["--help"])?;
    ensure!(help.status.success() && lists_all(&text(&help.stdout)), "{help:?}");
    let version = run(Command::new(&executable), &["--version"])?;
    ensure!(text(&version.stdout).starts_with("rollout-programs "), "{version:?}");
    Ok(())
}

/// The executable without links, and a folder in which it runs a local cluster. The cluster is stopped however the test
/// ends.
struct Cluster {
    executable: TempDir,
    folder: TempDir,
}

impl Cluster {
    fn run(&self, words: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.executable.path().join(EXECUTABLE));
        command.current_dir(self.folder.path()).env("XDG_STATE_HOME", self.folder.path());
        command.env_remove("ROLLOUT_CONTEXT");
        run(command, words)
    }

    fn succeed(&self, words: &[&str]) -> Result<String> {
        let ended = self.run(words)?;
        ensure!(ended.status.success(), "{words:?}: {ended:?}");
        Ok(text(&ended.stdout))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.run(&["rollout", "dev", "stop"]);
    }
}

#[test]
fn a_local_cluster_and_a_salvage_need_no_other_executable() -> Result<()> {
    let cluster = Cluster { executable: alone()?, folder: tempfile::tempdir()? };
    let size = ["--members", "1", "--workers", "1", "--slots", "1"];
    cluster.succeed(&[&["rollout", "dev", "--detach"][..], &size].concat())?;
    let context = cluster.folder.path().join(".rollout/dev/admin.toml");
    let context = context.to_string_lossy();
    let status = cluster.succeed(&["rolloutctl", "--context", &context, "status"])?;
    ensure!(status.contains("c1"), "{status}");
    cluster.succeed(&["rollout", "dev", "stop"])?;
    let stopped = cluster.succeed(&["rollout", "dev", "status"])?;
    ensure!(stopped.contains("stopped"), "{stopped}");

    let (data, saved) = (".rollout/dev/data/c1", "c1.snapshot");
    let salvage = ["rolloutctl", "snapshot", "save", saved, "--from-dir", data, "--confirm", "c1"];
    cluster.succeed(&salvage)?;
    ensure!(cluster.folder.path().join(saved).is_file(), "no snapshot was written");
    Ok(())
}

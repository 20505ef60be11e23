//! The command as a separate process.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::cluster::TestCluster;

/// A job of a test: a directory with a batch file and inputs.
pub(crate) struct Job<'a> {
    cluster: &'a TestCluster,
    pub(crate) dir: PathBuf,
    /// Environment variables of its commands.
    pub(crate) env: Vec<(&'static str, String)>,
    /// How long its commands wait for the cluster.
    pub(crate) timeout: &'static str,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct CommandOutcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for CommandOutcome {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl<'a> Job<'a> {
    pub(crate) fn new(cluster: &'a TestCluster, name: &str, input: &str) -> Self {
        let dir = cluster.dir.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let job = Self { cluster, dir, env: Vec::new(), timeout: "20s" };
        job.write("in.jsonl", input);
        job.write(
            "batch.toml",
            "[model]\nuri = \"mock\"\n[sampling]\nseed = 1\n[input]\nglob = \"in*.jsonl\"\n\
             [output]\ndir = \"out\"\n[workers]\ncount = 1\n",
        );
        job
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.join(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(name)).unwrap_or_default()
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rollout"));
        command
            .args(args)
            .args(["--insecure-plaintext", "-e", &self.cluster.addr.to_string()])
            .args(["--timeout", self.timeout])
            .current_dir(&self.dir)
            .env("XDG_CACHE_HOME", self.dir.join("cache"))
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ROLLOUT_")) {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutcome {
        self.command(args).output().unwrap().into()
    }

    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        self.command(args).spawn().unwrap()
    }

    /// Starts it with its standard output redirected.
    pub(crate) fn spawn_into(&self, args: &[&str], stdout: impl Into<Stdio>) -> Child {
        self.command(args).stdout(stdout).spawn().unwrap()
    }

    /// Runs it with this text on its standard input.
    pub(crate) fn run_with_input(&self, args: &[&str], text: &str) -> CommandOutcome {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap().into()
    }

    pub(crate) fn batch(&self, more: &[&str]) -> CommandOutcome {
        self.run(&[&["infer", "batch", "--config", "batch.toml"], more].concat())
    }

    pub(crate) fn spawn_batch(&self, more: &[&str]) -> Child {
        self.spawn(&[&["infer", "batch", "--config", "batch.toml"], more].concat())
    }

    pub(crate) fn lines(&self, file: &str) -> Vec<serde_json::Value> {
        let text = self.read(file);
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn run_name(&self) -> String {
        self.read("out/run-id").trim().to_owned()
    }
}

/// Sends Ctrl-C.
pub(crate) fn interrupt(child: &Child) {
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
}

pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(dir) else { return found };
    for entry in entries {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files_below(&path)),
            false => found.push(path),
        }
    }
    found
}

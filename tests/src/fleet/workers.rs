//! Workers of the fleet and others, with their certificates, and what they have done.

use super::Fleet;
use crate::process::Process;
use anyhow::Result;
use rollout_proto::Role;
use std::fmt::Write as _;

/// The options of a worker.
#[derive(Clone)]
pub struct WorkerOptions {
    /// Lines of its `[[engine]]` section.
    pub engine: String,
    /// Further lines before it.
    pub head: String,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        let engine = "kind = \"mock\"\nslots = 2\nconcurrency = 32\n".into();
        Self { engine, head: String::new() }
    }
}

impl Fleet {
    /// Starts a worker, for the first time or again.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_worker(&mut self, name: &str, options: &WorkerOptions) -> Result<()> {
        if !self.path(&format!("tls/worker-{name}.pem")).exists() {
            self.issue(Role::Worker, name)?;
        }
        let members: Vec<(String, String)> =
            self.members.iter().map(|m| (m.name.clone(), m.client.clone())).collect();
        let (mut endpoints, mut dial_map) = (Vec::new(), String::new());
        for (member, client) in members {
            let addr = self.link(name, &member, client)?;
            writeln!(dial_map, "{member} = {addr:?}")?;
            endpoints.push(addr);
        }
        let dial_map = match self.options.cuttable || self.options.alone.is_some() {
            true => format!("[dial_map]\n{dial_map}"),
            false => String::new(),
        };
        // A test's worker must not ask a real cloud.
        let compute = match options.head.contains("[compute]") {
            true => "",
            false => "[compute]\nprovider = \"none\"\n",
        };
        // Report rows one after another, not ten seconds of them at once.
        let part = match options.head.contains("[part]") {
            true => "",
            false => "[part]\nlinger_ms = 1000\n",
        };
        let text = format!(
            "name = {name:?}\ndata_dir = {:?}\nendpoints = {endpoints:?}\n{}\n{compute}{part}[tls]\n{}\
             {dial_map}[[engine]]\n{}",
            self.path(&format!("worker-{name}")),
            options.head,
            self.tls_lines(&format!("worker-{name}")),
            options.engine,
        );
        let config = self.path(&format!("worker-{name}.toml"));
        std::fs::write(&config, text)?;
        let mut command = self.program_of(name, "rollout-worker");
        command.arg("--config").arg(&config);
        self.preload_into(&mut command, name)?;
        self.store_into(&mut command, name);
        let process = Process::start(command, &self.path(&format!("worker-{name}.log")))?;
        self.workers.insert(name.into(), Some(process));
        Ok(())
    }

    /// Starts a worker that the fleet does not count as its own: `label` names its directory and log, `name` is its
    /// own name, and `cert` is the name on the certificate that it presents. `lines` are the top of its
    /// configuration.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_impostor(
        &self,
        label: &str,
        name: &str,
        cert: &str,
        lines: &str,
    ) -> Result<Process> {
        let endpoints: Vec<&str> = self.members.iter().map(|m| m.client.as_str()).collect();
        let text = format!(
            "name = {name:?}\ndata_dir = {:?}\nendpoints = {endpoints:?}\n{lines}\n[compute]\n\
             provider = \"none\"\n[tls]\n{}[[engine]]\nkind = \"mock\"\n",
            self.path(&format!("worker-{label}")),
            self.tls_lines(&format!("worker-{cert}")),
        );
        let config = self.path(&format!("worker-{label}.toml"));
        std::fs::write(&config, text)?;
        let mut command = self.program("rollout-worker");
        command.arg("--config").arg(&config);
        Process::start(command, &self.path(&format!("worker-{label}.log")))
    }

    /// The process of a worker.
    ///
    /// # Panics
    /// When it does not run.
    pub fn worker_process(&mut self, name: &str) -> &mut Process {
        self.workers.get_mut(name).and_then(Option::as_mut).expect("the worker runs")
    }

    /// Rows that a worker has finished in its session, once a member reports them.
    pub fn rows_done_by(&self, worker: &str) -> Option<u64> {
        let list = self.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        let workers = list.get("workers").unwrap_or(&list).as_array()?;
        let worker = workers.iter().find(|w| w["name"] == worker)?;
        let slots = worker.get("slots")?.as_array()?;
        let done = slots.iter().filter_map(|s| s["rowsDone"].as_str()?.parse::<u64>().ok());
        Some(done.sum())
    }
}

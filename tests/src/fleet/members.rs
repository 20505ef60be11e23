//! Members: starting them, forming a cluster, finding the leader, and reading each member's status.

use super::{Fleet, free_addr};
use crate::http;
use crate::process::{self, Process};
use crate::wait::eventually;
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time limit of any operation of a healthy fleet on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

impl Fleet {
    /// Starts a member, for the first time or again.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_member(&mut self, name: &str) -> Result<()> {
        if self.options.s3.is_none() {
            std::fs::create_dir_all(self.path("store"))?;
        }
        let others: Vec<(String, String)> = self
            .members
            .iter()
            .filter(|m| m.name != name)
            .map(|m| (m.name.clone(), m.peer.clone()))
            .collect();
        let mut dial_map = String::new();
        for (other, peer) in others {
            let addr = self.link(name, &other, peer)?;
            writeln!(dial_map, "{other} = {addr:?}")?;
        }
        let member = self.member(name);
        let (client, peer) = (member.client.clone(), member.peer.clone());
        let http = free_addr()?;
        let mut sections: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (section, line) in &self.options.member_lines {
            sections.entry(section).or_default().push(line);
        }
        let store_lines = sections.remove("store").unwrap_or_default().join("\n");
        let mut text = format!(
            "name = {name:?}\ndata_dir = {:?}\n[listen]\nclient = {client:?}\npeer = {peer:?}\n\
             http = {http:?}\n[tls]\n{}[store]\nurl = {:?}\n{store_lines}\n",
            self.path(name),
            self.tls_lines(&format!("member-{name}")),
            self.store_url(),
        );
        if self.options.cuttable || self.options.distance.is_some() {
            write!(text, "[dial_map]\n{dial_map}")?;
        }
        for (section, lines) in sections {
            write!(text, "[{section}]\n{}\n", lines.join("\n"))?;
        }
        text.push_str(&self.enrollment_lines(name));
        text.push_str(&self.api_lines(name));
        let config = self.path(&format!("{name}.toml"));
        std::fs::write(&config, text)?;
        let mut command = self.program_of(name, "rollout-coordinator");
        command.arg("--config").arg(&config);
        self.preload_into(&mut command, name)?;
        self.store_into(&mut command, name);
        if let Some(files) = self.options.open_files {
            process::limit_open_files(&mut command, files);
        }
        let process = Process::start(command, &self.path(&format!("{name}.log")))?;
        let member = self.member_mut(name);
        (member.process, member.http) = (Some(process), http);
        Ok(())
    }

    pub(super) fn bootstrap(&self) -> Result<()> {
        let mut args = vec!["cluster".to_owned(), "bootstrap".to_owned()];
        for m in &self.members {
            args.push("--member".into());
            args.push(format!("{}={},{},z{}", m.name, m.peer, m.client, m.name));
        }
        args.extend(["--store".into(), self.store_url()]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // If members do not listen yet, try again: repeating is harmless.
        let mut last = String::new();
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let out = self.ctl(&args)?;
            if out.status.success() {
                return Ok(());
            }
            last = String::from_utf8_lossy(&out.stderr).into_owned();
            std::thread::sleep(Duration::from_millis(50)); // The poll; the condition decides.
        }
        bail!("bootstrap: {last}{}", self.logs())
    }

    /// Forms another cluster from the same members, after deleting all their data.
    ///
    /// # Errors
    /// When a member cannot be stopped, emptied or started.
    pub fn rebuild(&mut self) -> Result<()> {
        for name in self.member_names() {
            self.member_mut(&name).process = None;
            std::fs::remove_dir_all(self.data_dir(&name))?;
        }
        for name in self.member_names() {
            self.start_member(&name)?;
        }
        self.bootstrap()
    }

    /// The process of a member.
    ///
    /// # Panics
    /// When it does not run.
    pub fn member_process(&mut self, name: &str) -> &mut Process {
        self.member_mut(name).process.as_mut().expect("the member runs")
    }

    /// Waits until a member reports that it leads, and returns its name.
    pub fn leader(&self) -> String {
        eventually("there is a leader", PATIENCE, || self.leader_now())
    }

    /// Waits until a member that is not `old` leads.
    pub fn leader_other_than(&self, old: &str) -> String {
        eventually("another member leads", PATIENCE, || {
            self.leader_now().filter(|name| name != old)
        })
    }

    fn leader_now(&self) -> Option<String> {
        let status = self.ctl_json(&["--timeout", "2s", "status"]).ok()?;
        Some(status.get("leader")?.as_str()?.to_owned())
    }

    /// Proves that all members hold the same state, in memory and on disk.
    ///
    /// # Errors
    /// What `rolloutctl cluster verify` says.
    pub fn verify(&self) -> Result<()> {
        let out = self.ctl(&["cluster", "verify"])?;
        if !out.status.success() {
            let (o, e) =
                (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            bail!("cluster verify: {o}{e}{}", self.logs());
        }
        Ok(())
    }

    /// A member's response to a probe or a scraper: status and body.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn http(&self, member: &str, path: &str) -> Result<(u16, String)> {
        http::get(&self.member(member).http, path)
    }

    /// The value of a member's counter; 0 if it has not counted yet.
    pub fn counted(&self, member: &str, metric: &str) -> Option<u64> {
        http::counted(&self.member(member).http, metric)
    }

    /// The client address of a member, for error messages and single requests.
    pub fn client_addr(&self, name: &str) -> &str {
        &self.member(name).client
    }

    /// The address at which a member listens for the others.
    pub fn peer_addr(&self, name: &str) -> &str {
        &self.member(name).peer
    }

    /// The address at which a member serves health and metrics.
    pub fn http_addr(&self, name: &str) -> &str {
        &self.member(name).http
    }

    /// The data directory of a member.
    pub fn data_dir(&self, name: &str) -> PathBuf {
        Path::new(self.dir.path()).join(name)
    }
}

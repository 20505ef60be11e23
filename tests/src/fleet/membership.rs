//! Adding and removing members, and members that lose their disks.

use super::{Fleet, Member, free_addr};
use anyhow::{Context, Result, ensure};
use rollout_proto::Role;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;

fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

impl Fleet {
    /// Starts a process that waits to become a member of this name.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_waiting(&mut self, name: &str) -> Result<()> {
        let (client, peer) = (free_addr()?, free_addr()?);
        let (name, http, process) = (name.to_owned(), String::new(), None);
        self.members.push(Member { name: name.clone(), client, peer, http, process });
        self.issue(Role::Member, &name)?;
        self.start_member(&name)
    }

    /// `rolloutctl member VERB NAMES...` with the addresses of the process of that name.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn member_joins(&self, verb: &[&str], name: &str) -> Result<Output> {
        let member = self.member(name);
        let mut args = vec!["member"];
        args.extend(verb);
        args.extend(["--peer-addr", &member.peer, "--client-addr", &member.client, "--zone", name]);
        self.ctl(&args)
    }

    /// Kills a member's process and forgets that it was ever started.
    pub fn member_is_gone(&mut self, name: &str) {
        self.members.retain(|member| member.name != name);
    }

    /// Kills a member's process, and keeps its directory.
    pub fn kill_member(&mut self, name: &str) {
        self.member_mut(name).process = None;
    }

    /// Kills all members and replaces them by new ones, restored from a snapshot file on empty disks; returns the id
    /// of their cluster.
    ///
    /// # Errors
    /// When one cannot be restored or started, or they are not of one cluster.
    pub fn restore(&mut self, file: &Path, names: &[&str], token: &str) -> Result<String> {
        self.members.clear();
        self.open_enrollment_ports(names)?;
        for name in names {
            let (client, peer) = (free_addr()?, free_addr()?);
            let (name, http, process) = ((*name).to_owned(), String::new(), None);
            self.members.push(Member { name: name.clone(), client, peer, http, process });
            self.issue(Role::Member, &name)?;
        }
        let mut clusters = BTreeSet::new();
        for name in names {
            let restored = self.ctl_json(&strs(&self.restore_args(file, name, token)))?;
            clusters.insert(restored["clusterId"].as_str().unwrap_or_default().to_owned());
        }
        ensure!(clusters.len() == 1, "{clusters:?} of one file, one list, one token");
        self.write_context("user", "client-user")?;
        self.write_context("operator", "admin-operator")?;
        for name in names {
            self.start_member(name)?;
        }
        clusters.pop_first().context("no member")
    }

    /// The arguments of `rolloutctl` that make a member's directory.
    pub fn restore_args(&self, file: &Path, name: &str, token: &str) -> Vec<String> {
        let dir = self.data_dir(name).display().to_string();
        let mut args: Vec<String> = ["snapshot", "restore"].map(String::from).to_vec();
        args.extend([file.display().to_string(), "--data-dir".into(), dir]);
        args.extend(["--member", name, "--token", token].map(String::from));
        for m in &self.members {
            args.push("--cluster-member".into());
            args.push(format!("{}={},{},z{}", m.name, m.peer, m.client, m.name));
        }
        args
    }

    /// Kills a member's process and wipes its disk.
    ///
    /// # Errors
    /// When its files cannot be removed.
    pub fn member_loses_its_disk(&mut self, name: &str) -> Result<()> {
        self.member_mut(name).process = None;
        Ok(std::fs::remove_dir_all(self.data_dir(name))?)
    }
}

//! Members that come, go, and lose their disks.

use super::{Fleet, Member, free_addr};
use anyhow::Result;
use rollout_proto::Role;
use std::process::Output;

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

    /// Ends a member's process by SIGKILL and forgets that it was ever started.
    pub fn member_is_gone(&mut self, name: &str) {
        self.members.retain(|member| member.name != name);
    }

    /// Ends a member's process by SIGKILL and takes its disk.
    ///
    /// # Errors
    /// When its files cannot be removed.
    pub fn member_loses_its_disk(&mut self, name: &str) -> Result<()> {
        self.member_mut(name).process = None;
        Ok(std::fs::remove_dir_all(self.data_dir(name))?)
    }
}

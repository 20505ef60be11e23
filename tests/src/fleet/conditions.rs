//! The conditions under which processes run: the links between them, their wall clocks and disks, and the library they
//! preload.

use super::Fleet;
use crate::links::{Connection, Cut, Link};
use crate::preload;
use anyhow::{Context, Result};
use rollout_jepsen::delay::{Delay, OneWay};
use rollout_powerloss::{DISK_ENV, Disk};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// A proxy, and its controls.
pub(super) struct Proxied {
    cut: Cut,
    delay: Delay,
    link: Link,
}

impl Fleet {
    /// The link from one process to another's port. It goes through a proxy if the fleet is cuttable, or if both
    /// processes are members of a fleet with latency.
    pub(super) fn link(&mut self, from: &str, to: &str, addr: String) -> Result<String> {
        let is_member = |name: &str| self.members.iter().any(|member| member.name == name);
        let distance = self.options.distance.filter(|_| is_member(from) && is_member(to));
        if !self.options.cuttable && distance.is_none() {
            return Ok(addr);
        }
        let key = (from.to_owned(), to.to_owned());
        if !self.links.contains_key(&key) {
            let (cut, delay) = (Cut::default(), Delay::default());
            let link = match distance {
                None => Link::start(addr, cut.clone())?,
                Some(one_way) => {
                    delay.set(one_way);
                    Link::across(addr, cut.clone(), delay.clone())?
                }
            };
            self.links.insert(key.clone(), Proxied { cut, delay, link });
        }
        Ok(self.links[&key].link.addr.clone())
    }

    fn between(&self, a: &str, b: &str) -> impl Iterator<Item = &Proxied> {
        let keys = [(a.to_owned(), b.to_owned()), (b.to_owned(), a.to_owned())];
        keys.into_iter().filter_map(|key| self.links.get(&key))
    }

    /// Cuts or heals everything between two names, in both directions.
    pub fn set_cut(&self, a: &str, b: &str, cut: bool) {
        self.between(a, b).for_each(|proxied| match cut {
            true => proxied.cut.cut(),
            false => proxied.cut.heal(),
        });
    }

    /// The open connections between two names, whichever side made them. The fleet must be cuttable.
    pub fn connections(&self, a: &str, b: &str) -> Vec<Connection> {
        self.between(a, b).flat_map(|proxied| proxied.link.open()).collect()
    }

    /// Bytes that have passed between two names, in both directions. The fleet must be cuttable.
    pub fn bytes_between(&self, a: &str, b: &str) -> u64 {
        self.between(a, b).map(|proxied| proxied.link.bytes()).sum()
    }

    /// Stops or resumes the connection on which a leader has sent a member most, and every later connection between
    /// the two. After enough entries that is the connection for log entries. Heartbeats continue.
    pub fn set_log_stalled(&self, leader: &str, member: &str, stalled: bool) {
        let proxied = self.links.get(&(leader.to_owned(), member.to_owned()));
        let link = &proxied.expect("the fleet is cuttable").link;
        match stalled {
            true => link.stall_busiest(),
            false => link.resume(),
        }
    }

    /// Sets the latency between two members of a fleet with latency, in both directions.
    pub fn set_distance(&self, a: &str, b: &str, one_way: OneWay) {
        self.between(a, b).for_each(|proxied| proxied.delay.set(one_way));
    }

    /// The same between all members.
    pub fn set_distances(&self, one_way: OneWay) {
        self.links.values().for_each(|proxied| proxied.delay.set(one_way));
    }

    /// Adds what a process preloads, by its name, to its command.
    pub(super) fn preload_into(&self, command: &mut Command, name: &str) -> Result<()> {
        for (variable, value) in self.preloads.get(name).into_iter().flatten() {
            preload::give(command, variable, value)?;
        }
        self.clocks.as_ref().map_or(Ok(()), |clocks| clocks.give(command, name))
    }

    /// From its next start a member or a worker loads the library `rollout-preload` with this variable.
    pub fn preload(&mut self, name: &str, variable: &'static str, value: PathBuf) {
        self.preloads.entry(name.into()).or_default().insert(variable, value);
    }

    /// Gives each member a disk without faults, if the options ask for them.
    pub(super) fn give_disks(&mut self) -> Result<()> {
        let Some(part) = self.options.disks else { return Ok(()) };
        for name in self.member_names() {
            let path = self.disk_file(&name);
            Disk::create(&path, &part(self.data_dir(&name)))?;
            self.preload(&name, DISK_ENV, path);
        }
        Ok(())
    }

    /// The disk of each member, by its name.
    ///
    /// # Errors
    /// When the fleet was started without disks of its own.
    pub fn disks(&self) -> Result<BTreeMap<String, &'static Disk>> {
        let names = self.member_names().into_iter();
        names.map(|name| Ok((name.clone(), Disk::open(&self.disk_file(&name))?))).collect()
    }

    fn disk_file(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.disk"))
    }

    /// Sets the wall clock of a member or a worker, running or not, this many seconds ahead of the real one;
    /// negative: behind.
    ///
    /// # Errors
    /// When the fleet has no clocks of its own, or one cannot be set.
    pub fn set_clock(&self, name: &str, ahead_s: i64) -> Result<()> {
        self.clocks.as_ref().context("the fleet was started without clocks")?.set(name, ahead_s)
    }
}

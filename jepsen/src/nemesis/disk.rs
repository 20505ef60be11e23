//! Makes disks slow, faulty, or full.
//!
//! *Invariant:* a fault counts only once a call of the member has hit it. A member may exit because of it; it is
//! started again when the disk works.

use super::{Effect, Nemesis, Undo};
use anyhow::Result;
use rollout_powerloss::DiskFault;
use std::time::{Duration, Instant};

/// Time to prove a disk fault: a member with clients writes many times a second; a follower that is cut off writes
/// its vote now and then.
const MEET_LIMIT: Duration = Duration::from_secs(3);

impl Nemesis {
    /// Injects a fault into the disk of this member.
    pub(super) async fn spoil(&mut self, at: usize, fault: DiskFault) -> Result<Effect> {
        let name = self.fleet.members[at].name.clone();
        let disk = self.fleet.preload.disk(&name)?;
        disk.set(fault);
        let begun = Instant::now();
        while disk.met() == 0 && begun.elapsed() < MEET_LIMIT {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let on = match fault {
            DiskFault::SlowSync(ms) => format!("{name} ({ms} ms)"),
            _ => name.clone(),
        };
        Ok(Effect { on, proven: disk.met() > 0, undo: Undo::Repair(name) })
    }

    pub(super) fn repair(&self, name: &str) -> Result<()> {
        self.fleet.preload.disk(name)?.set(DiskFault::None);
        Ok(())
    }
}

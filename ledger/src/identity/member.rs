//! The members of the cluster as their leaders have seen them: which led last, and each member's last known process.
//!
//! *Invariant:* this state only produces events; nothing else depends on it. An operation that repeats what is known
//! is accepted, changes nothing and makes no event: a leader may repeat it, and the next leader continues where the
//! last one ended. A rejected operation changes nothing.
//!
//! Absent: the list of members. Consensus has it, and the leader reports which members have left it.

use crate::kernel::codec;
use crate::kernel::id::CoordEpoch;
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::event::{Emitter, EventKind};
use crate::machine::image::ImageDelta;
use crate::machine::image_load::{LoadError, read};
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::{SCHEDULING_VERSION, came_with};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Why leadership went to another member, or to the same one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeaderCause {
    /// The ledger knows of no leader before.
    First,
    /// An administrator asked for the transfer.
    Requested,
    /// The former leader handed over because it was stopping.
    Stopping,
    /// The former leader handed over because its disk was slow.
    SlowDisk,
    /// The former leader handed over because its disk was full.
    FullDisk,
    /// The former leader handed over because it was losing its vote.
    Removal,
    /// The former leader's connections broke: its process ended, or it was cut off.
    ConnectionsLost,
    /// The former leader was silent for the election timeout.
    ElectionTimeout,
    /// The former leader lost its majority or restarted, and was elected again.
    Again,
}

impl LeaderCause {
    /// Every cause.
    pub const ALL: [Self; 9] = [
        Self::First,
        Self::Requested,
        Self::Stopping,
        Self::SlowDisk,
        Self::FullDisk,
        Self::Removal,
        Self::ConnectionsLost,
        Self::ElectionTimeout,
        Self::Again,
    ];

    /// The cause as one word, for programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Requested => "requested",
            Self::Stopping => "stopping",
            Self::SlowDisk => "slow_disk",
            Self::FullDisk => "full_disk",
            Self::Removal => "removal",
            Self::ConnectionsLost => "connections_lost",
            Self::ElectionTimeout => "election_timeout",
            Self::Again => "again",
        }
    }
}

/// A leader's report about the members. A process is identified by its start time, in milliseconds since 1970 by its
/// own clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberOp {
    /// This member leads in the command's epoch.
    Leads {
        /// Its name. At most [`limits::MEMBER_NAME_BYTES_MAX`] bytes, as every name here.
        name: String,
        /// Why it leads and not the former leader.
        cause: LeaderCause,
    },
    /// A member's process answers.
    Started {
        /// The member's id.
        id: u64,
        /// Its name.
        name: String,
        /// When the process started, in milliseconds since 1970 by its own clock. It identifies the process.
        started_ms: u64,
    },
    /// A member's process announced that it stops.
    Stopped {
        /// The member's id.
        id: u64,
        /// When the process started, in milliseconds since 1970 by its own clock. It identifies the process.
        started_ms: u64,
    },
    /// A member's process has not answered the leader for a while.
    Unreachable {
        /// The member's id.
        id: u64,
        /// When the process started, in milliseconds since 1970 by its own clock. It identifies the process.
        started_ms: u64,
    },
    /// It answers again.
    Reachable {
        /// The member's id.
        id: u64,
        /// When the process started, in milliseconds since 1970 by its own clock. It identifies the process.
        started_ms: u64,
    },
    /// No member has this id any more.
    Removed {
        /// The member's id.
        id: u64,
    },
}

/// The last known state of a member's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// It answers.
    Running,
    /// It does not answer.
    Unreachable,
    /// It has stopped cleanly.
    Stopped,
}

/// A member as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenMember {
    /// Its name.
    pub name: String,
    /// When its latest process started, in milliseconds since 1970 by its own clock.
    pub started_ms: u64,
    /// The last known state of that process.
    pub state: MemberState,
}

/// All members, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The name of the last leader that reported itself; empty before the first.
    pub leader: String,
    /// The epoch in which it did.
    pub epoch: CoordEpoch,
    /// The members that were seen.
    pub seen: BTreeMap<u64, SeenMember>,
}

fn check_name(name: &str) -> Result<(), Rejection> {
    let max = limits::MEMBER_NAME_BYTES_MAX;
    match name.is_empty() || name.len() > max {
        true => Err(Rejection::Invalid(format!("a member's name has 1 to {max} bytes"))),
        false => Ok(()),
    }
}

came_with!(MemberOp, MEMBERS, {
    3: MemberOp::Leads { .. } | MemberOp::Started { .. } | MemberOp::Stopped { .. }
        | MemberOp::Unreachable { .. } | MemberOp::Reachable { .. } | MemberOp::Removed { .. },
});

came_with!(LeaderCause, LEADER_CAUSES, {
    3: LeaderCause::First | LeaderCause::Requested | LeaderCause::Stopping
        | LeaderCause::SlowDisk | LeaderCause::FullDisk | LeaderCause::Removal
        | LeaderCause::ConnectionsLost | LeaderCause::ElectionTimeout | LeaderCause::Again,
});

impl Operation for MemberOp {
    const SINCE: u32 = 3;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        match self {
            Self::Leads { cause, .. } => self.came_with().max(cause.came_with()),
            Self::Started { .. }
            | Self::Stopped { .. }
            | Self::Unreachable { .. }
            | Self::Reachable { .. }
            | Self::Removed { .. } => self.came_with(),
        }
    }

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        // The number of members is bounded.
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Cluster
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.member_op(ctx, self)
    }
}

/// The members as last reported, and whether their record differs from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemberReports {
    latest: Members,
    dirty: bool,
}

/// Below the tag of the meta record, which is that letter alone: no letter is left.
pub(crate) const MEMBERS_KEY: &[u8] = b"Mm";

impl MemberReports {
    fn execute(
        &mut self,
        op: MemberOp,
        epoch: CoordEpoch,
        out: &mut Emitter,
    ) -> Result<Reply, Rejection> {
        match op {
            MemberOp::Leads { name, cause } => self.leads(out, epoch, name, cause)?,
            MemberOp::Started { id, name, started_ms } => {
                self.started(out, id, (name, started_ms))?;
            }
            MemberOp::Stopped { id, started_ms } => {
                self.turned(out, (id, started_ms), MemberState::Stopped);
            }
            MemberOp::Unreachable { id, started_ms } => {
                self.turned(out, (id, started_ms), MemberState::Unreachable);
            }
            MemberOp::Reachable { id, started_ms } => {
                self.turned(out, (id, started_ms), MemberState::Running);
            }
            MemberOp::Removed { id } => {
                self.dirty |= self.latest.seen.remove(&id).is_some();
            }
        }
        Ok(Reply::Ok)
    }

    fn leads(
        &mut self,
        out: &mut Emitter,
        epoch: CoordEpoch,
        leader: String,
        cause: LeaderCause,
    ) -> Result<(), Rejection> {
        check_name(&leader)?;
        if self.latest.epoch == epoch {
            return Ok(());
        }
        self.latest.epoch = epoch;
        let former = std::mem::replace(&mut self.latest.leader, leader.clone());
        self.dirty = true;
        out.emit(EventKind::LeaderChanged { epoch, leader, former, cause });
        Ok(())
    }

    fn started(
        &mut self,
        out: &mut Emitter,
        id: u64,
        (name, started_ms): (String, u64),
    ) -> Result<(), Rejection> {
        check_name(&name)?;
        let seen = &mut self.latest.seen;
        let cause = match seen.get(&id) {
            Some(member) if member.started_ms == started_ms => return Ok(()),
            Some(member) if member.state == MemberState::Stopped => "after_stop",
            Some(_) => "without_notice",
            None if seen.len() >= limits::MEMBERS_SEEN_MAX => {
                let max = limits::MEMBERS_SEEN_MAX as u64;
                return Err(Rejection::Limit { what: "members".into(), max });
            }
            None => "first",
        };
        let member = name.clone();
        seen.insert(id, SeenMember { name, started_ms, state: MemberState::Running });
        self.dirty = true;
        out.emit(EventKind::MemberChanged { member, to: "started", cause });
        Ok(())
    }

    /// Changes the state of the process with that start time. A stopped process stays stopped.
    fn turned(&mut self, out: &mut Emitter, (id, started_ms): (u64, u64), to: MemberState) {
        let Some(member) = self.latest.seen.get_mut(&id) else { return };
        let (to_text, turns) = match to {
            MemberState::Running => ("reachable", member.state == MemberState::Unreachable),
            MemberState::Unreachable => ("unreachable", member.state == MemberState::Running),
            MemberState::Stopped => ("stopped", member.state != MemberState::Stopped),
        };
        if member.started_ms != started_ms || !turns {
            return;
        }
        member.state = to;
        let member = member.name.clone();
        self.dirty = true;
        out.emit(EventKind::MemberChanged { member, to: to_text, cause: "" });
    }

    /// Takes the record, if it changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        if std::mem::take(&mut self.dirty) {
            delta.set(MEMBERS_KEY.to_vec(), self.record());
        }
    }

    /// `None` while no member was reported: members with an earlier build have no such record.
    pub(crate) fn record(&self) -> Option<Vec<u8>> {
        (self.latest != Members::default()).then(|| codec::encode(&self.latest))
    }

    /// Reads the record.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        self.latest = read(key, value)?;
        Ok(())
    }

    /// Checks the invariants of the reports.
    pub(crate) fn check(&self, version: u32) -> Result<(), String> {
        let Members { seen, .. } = &self.latest;
        if seen.len() > limits::MEMBERS_SEEN_MAX {
            return Err(format!("{} members were seen", seen.len()));
        }
        match version < SCHEDULING_VERSION && self.latest != Members::default() {
            true => Err("the cluster's version knows no reports of members".into()),
            false => Ok(()),
        }
    }
}

impl Ledger {
    fn member_op(&mut self, ctx: &Context, op: MemberOp) -> Result<Reply, Rejection> {
        let out = &mut Emitter::new(ctx, &mut self.events);
        self.members.execute(op, self.meta.epoch(), out)
    }

    /// The members as their leaders have reported them.
    pub fn members(&self) -> &Members {
        &self.members.latest
    }
}

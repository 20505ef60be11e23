//! Members in the model: a list that is searched, the events that follow, and the actions on them.

use crate::naive::{Model, Outcome};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rollout_ledger::{
    Event, EventKind, LeaderCause, Ledger, MemberOp, MemberState, OpKind, Rejection, Reply,
};

/// What is known of a member: id, name, process, and what that does.
type KnownMember = (u64, String, u64, &'static str);

/// The model's knowledge of all members.
#[derive(Default)]
pub(crate) struct MembersModel {
    leader: (String, u64),
    seen: Vec<KnownMember>,
    /// Events since the last comparison.
    told: Vec<String>,
}

impl MembersModel {
    pub(crate) fn listed(&self) -> ((String, u64), Vec<KnownMember>) {
        let mut seen = self.seen.clone();
        seen.sort();
        (self.leader.clone(), seen)
    }
}

/// Reports about three members, each with three processes.
#[derive(Clone, Debug)]
pub(crate) enum MemberAct {
    Leads { member: u8, cause: LeaderCause },
    Started { member: u8, process: u8 },
    Stopped { member: u8, process: u8 },
    Unreachable { member: u8, process: u8 },
    Reachable { member: u8, process: u8 },
    Removed { member: u8 },
}

pub(crate) fn member_act() -> impl Strategy<Value = MemberAct> {
    let cause = prop::sample::select(LeaderCause::ALL.to_vec());
    let one = || (0..3u8, prop_oneof![4 => Just(1u8), 1 => 2..4u8]);
    prop_oneof![
        3 => (0..3u8, cause).prop_map(|(member, cause)| MemberAct::Leads { member, cause }),
        4 => (0..3u8, 1..4u8)
            .prop_map(|(member, process)| MemberAct::Started { member, process }),
        2 => one().prop_map(|(member, process)| MemberAct::Stopped { member, process }),
        4 => one().prop_map(|(member, process)| MemberAct::Unreachable { member, process }),
        4 => one().prop_map(|(member, process)| MemberAct::Reachable { member, process }),
        1 => (0..3u8).prop_map(|member| MemberAct::Removed { member }),
    ]
}

impl MemberAct {
    pub(crate) fn kind(&self) -> OpKind {
        let name = |member: u8| format!("c{member}");
        OpKind::Member(match *self {
            MemberAct::Leads { member, cause } => MemberOp::Leads { name: name(member), cause },
            MemberAct::Started { member, process } => MemberOp::Started {
                id: member.into(),
                name: name(member),
                started_ms: process.into(),
            },
            MemberAct::Stopped { member, process } => {
                MemberOp::Stopped { id: member.into(), started_ms: process.into() }
            }
            MemberAct::Unreachable { member, process } => {
                MemberOp::Unreachable { id: member.into(), started_ms: process.into() }
            }
            MemberAct::Reachable { member, process } => {
                MemberOp::Reachable { id: member.into(), started_ms: process.into() }
            }
            MemberAct::Removed { member } => MemberOp::Removed { id: member.into() },
        })
    }
}

impl Model {
    pub(crate) fn member(&mut self, op: MemberOp) -> Outcome {
        if self.version < 3 {
            return Err(Rejection::VersionLow { needs: 3, version: self.version });
        }
        let told = self.members.told.len();
        let what = match op {
            MemberOp::Leads { name, cause } => {
                if self.members.leader.1 != self.epoch {
                    let former = &self.members.leader.0;
                    let text = format!("{name} {former} {} {}", self.epoch, cause.word());
                    self.members.told.push(text);
                    self.members.leader = (name, self.epoch);
                }
                "leader changed"
            }
            MemberOp::Started { id, name, started_ms } => self.start(id, name, started_ms),
            MemberOp::Stopped { id, started_ms } => {
                self.turn((id, started_ms), &["running", "unreachable"], "stopped");
                "member stopped"
            }
            MemberOp::Unreachable { id, started_ms } => {
                self.turn((id, started_ms), &["running"], "unreachable");
                "member unreachable"
            }
            MemberOp::Reachable { id, started_ms } => {
                self.turn((id, started_ms), &["unreachable"], "running");
                "member reachable"
            }
            MemberOp::Removed { id } => {
                self.members.seen.retain(|seen| seen.0 != id);
                return Ok(Reply::Ok);
            }
        };
        let changed = self.members.told.len() > told;
        self.events.push(if changed { what } else { "member said what is known" }.into());
        Ok(Reply::Ok)
    }

    fn start(&mut self, id: u64, name: String, process: u64) -> &'static str {
        let known = self.members.seen.iter().find(|seen| seen.0 == id).cloned();
        let (cause, what) = match &known {
            Some(known) if known.2 == process => return "member started",
            Some(known) if known.3 == "stopped" => ("after_stop", "member started after a stop"),
            Some(_) => ("without_notice", "member started without notice"),
            None => ("first", "member started"),
        };
        self.members.told.push(format!("{name} started {cause}"));
        self.members.seen.retain(|seen| seen.0 != id);
        self.members.seen.push((id, name, process, "running"));
        what
    }

    fn turn(&mut self, (id, process): (u64, u64), from: &[&str], to: &'static str) {
        for seen in &mut self.members.seen {
            if seen.0 == id && seen.2 == process && from.contains(&seen.3) {
                seen.3 = to;
                let to = if to == "running" { "reachable" } else { to };
                self.members.told.push(format!("{} {to} ", seen.1));
            }
        }
    }
}

/// The ledger's list, as the model's.
pub(crate) fn listed(ledger: &Ledger) -> ((String, u64), Vec<KnownMember>) {
    let members = ledger.members();
    let seen = members.seen.iter().map(|(id, seen)| {
        let state = match seen.state {
            MemberState::Running => "running",
            MemberState::Unreachable => "unreachable",
            MemberState::Stopped => "stopped",
        };
        (*id, seen.name.clone(), seen.started_ms, state)
    });
    ((members.leader.clone(), members.epoch.0), seen.collect())
}

/// Each change makes one event, and what is known already makes none.
pub(crate) fn same_events(events: &[Event], model: &mut Model) -> TestCaseResult {
    let text = |event: &Event| match &event.kind {
        EventKind::LeaderChanged { epoch, leader, former, cause } => {
            Some(format!("{leader} {former} {epoch} {}", cause.word()))
        }
        EventKind::MemberChanged { member, to, cause } => Some(format!("{member} {to} {cause}")),
        _ => None,
    };
    let told: Vec<String> = events.iter().filter_map(text).collect();
    prop_assert_eq!(told, std::mem::take(&mut model.members.told));
    Ok(())
}

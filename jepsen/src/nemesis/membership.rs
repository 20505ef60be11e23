//! Changes the membership while clients run: three members become five, a member that lost its disk takes its own
//! place again, the leader is removed, and a member joins while another is cut off.
//!
//! *Invariant:* a change counts once the leader lists the requested membership. At the end the three original members
//! are the members again, each with a vote; a cluster that does not get there is an alarm.

use super::{Effect, Nemesis, Undo};
use crate::events::EventKind;
use crate::fleet::MEMBERS;
use crate::observe::Observers;
use crate::recorder::Recorder;
use anyhow::Result;
use rollout_proto::v1;
use std::time::{Duration, Instant};

/// Time limit for a change while other faults are in force.
const CHANGE_LIMIT: Duration = Duration::from_secs(6);
/// Time limit for restoring the membership when none is.
const RESTORE_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of one call.
const CALL_LIMIT: Duration = Duration::from_secs(3);
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The members that the leader lists.
type Listed = Vec<v1::MemberInfo>;

fn votes(listed: &[v1::MemberInfo], name: &str) -> bool {
    listed.iter().any(|member| member.name == name && member.voter)
}

impl Nemesis {
    /// The members that the leader lists; `None` if no leader answers.
    async fn listed(&self, watch: &Observers) -> Option<(usize, Listed)> {
        let at = watch.leader()?;
        let mut operator = self.fleet.operator(at).ok()?;
        let request = operator.list_members(v1::ListMembersRequest {});
        let answer = tokio::time::timeout(CALL_LIMIT, request).await.ok()?.ok()?.into_inner();
        // A member that no longer leads reports nothing about its log.
        let leads = answer.members.iter().any(|member| member.last_log_index > 0);
        leads.then(|| (at, answer.members.into_iter().filter_map(|m| m.member).collect()))
    }

    async fn add(&self, leader: usize, at: usize, replaces: &str) {
        let Ok(mut operator) = self.fleet.operator(leader) else { return };
        let member = &self.fleet.members[at];
        let request = v1::AddMemberRequest {
            name: member.name.clone(),
            peer_addr: member.peer().to_owned(),
            client_addr: member.client.clone(),
            replaces: replaces.to_owned(),
            ..v1::AddMemberRequest::default()
        };
        // The list will show whether the request was accepted.
        let _ = tokio::time::timeout(CALL_LIMIT, operator.add_member(request)).await;
    }

    async fn remove(&self, leader: usize, name: &str) {
        let Ok(mut operator) = self.fleet.operator(leader) else { return };
        let request = v1::RemoveMemberRequest { name: name.to_owned() };
        let _ = tokio::time::timeout(CALL_LIMIT, operator.remove_member(request)).await;
    }

    /// Starts a spare and has it join, until it has its vote.
    async fn joins(&mut self, at: usize, watch: &Observers, limit: Duration) -> Result<bool> {
        if !self.fleet.runs(at) {
            self.fleet.start_member(at)?;
        }
        let name = self.fleet.members[at].name.clone();
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if let Some((leader, listed)) = self.listed(watch).await {
                if votes(&listed, &name) {
                    return Ok(true);
                }
                self.add(leader, at, "").await;
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        Ok(false)
    }

    fn restored_later(&self, of: &[usize], proven: bool, cut: Vec<(String, String)>) -> Effect {
        Effect { on: self.names(of), proven, undo: Undo::Restore(cut) }
    }

    /// Three become five.
    pub(super) async fn grow(&mut self, watch: &Observers) -> Result<Effect> {
        let mut proven = true;
        for at in MEMBERS..self.fleet.members.len() {
            proven &= self.joins(at, watch, CHANGE_LIMIT).await?;
        }
        let spares: Vec<usize> = (MEMBERS..self.fleet.members.len()).collect();
        Ok(self.restored_later(&spares, proven, Vec::new()))
    }

    /// A member loses its disk, and takes its own member under another id.
    pub(super) async fn replace(&mut self, at: usize, watch: &Observers) -> Result<Effect> {
        let name = self.fleet.members[at].name.clone();
        let id_in =
            |listed: &[v1::MemberInfo]| listed.iter().find(|m| m.name == name).map(|m| m.id);
        let Some(before) = self.listed(watch).await.and_then(|(_, listed)| id_in(&listed)) else {
            return Ok(self.restored_later(&[at], false, Vec::new()));
        };
        self.anew(at, before)?;
        let (begun, mut proven) = (Instant::now(), false);
        while !proven && begun.elapsed() < CHANGE_LIMIT {
            if let Some((leader, listed)) = self.listed(watch).await {
                proven = votes(&listed, &name) && id_in(&listed).is_some_and(|id| id > before);
                if !proven {
                    self.add(leader, at, &name).await;
                }
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        Ok(self.restored_later(&[at], proven, Vec::new()))
    }

    /// A fourth member comes, and the leader goes.
    pub(super) async fn remove_leader(&mut self, at: usize, watch: &Observers) -> Result<Effect> {
        let proven = self.joins(MEMBERS, watch, CHANGE_LIMIT).await?
            && self.leaves(at, watch, CHANGE_LIMIT).await;
        Ok(self.restored_later(&[at], proven, Vec::new()))
    }

    /// A spare joins while a member is cut off from the others.
    pub(super) async fn change_while_cut(
        &mut self,
        at: usize,
        watch: &Observers,
    ) -> Result<Effect> {
        let others = (0..MEMBERS).filter(|other| *other != at);
        let away = self.cut(others.flat_map(|other| [(at, other), (other, at)]));
        let joined = self.joins(MEMBERS, watch, CHANGE_LIMIT).await?;
        let Undo::Open(pairs) = away.undo else { return Ok(away) };
        Ok(Effect {
            on: format!("{} while {} is cut off", self.names(&[MEMBERS]), away.on),
            proven: away.proven && joined,
            undo: Undo::Restore(pairs),
        })
    }

    /// Removes a member. True once it is no longer listed.
    async fn leaves(&self, at: usize, watch: &Observers, limit: Duration) -> bool {
        let name = &self.fleet.members[at].name;
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if let Some((leader, listed)) = self.listed(watch).await {
                if !listed.iter().any(|member| member.name == *name) {
                    return true;
                }
                self.remove(leader, name).await;
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        false
    }

    /// Makes the three original members the members again.
    pub(super) async fn restore(&mut self, watch: &Observers, recorder: &Recorder) -> Result<()> {
        let begun = Instant::now();
        let mut why = "nobody leads".to_owned();
        while begun.elapsed() < RESTORE_LIMIT {
            self.revive(recorder)?;
            let Some((leader, listed)) = self.listed(watch).await else {
                tokio::time::sleep(AGAIN_AFTER).await;
                continue;
            };
            let there = |at: usize| {
                let name = &self.fleet.members[at].name;
                let lost = self.lost.get(&at).copied();
                listed.iter().any(|m| m.name == *name && m.voter && Some(m.id) != lost)
            };
            let missing = (0..MEMBERS).find(|at| !there(*at));
            let spare = (MEMBERS..self.fleet.members.len())
                .find(|at| listed.iter().any(|m| m.name == self.fleet.members[*at].name));
            let names: Vec<&String> = listed.iter().map(|member| &member.name).collect();
            why = format!("the members are {names:?}");
            match (missing, spare) {
                (Some(at), _) => self.comes_back(at, leader, &listed).await?,
                (None, Some(at)) => {
                    self.leaves(at, watch, CALL_LIMIT).await;
                }
                (None, None) => {
                    self.lost.clear();
                    return (MEMBERS..self.fleet.members.len())
                        .try_for_each(|at| self.fleet.wipe(at));
                }
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
        recorder.event(EventKind::Refused { what: "a membership of three".into(), why });
        Ok(())
    }

    /// A member that was removed, or lost its disk, asks for its place with an empty disk.
    async fn comes_back(
        &mut self,
        at: usize,
        leader: usize,
        listed: &[v1::MemberInfo],
    ) -> Result<()> {
        let name = self.fleet.members[at].name.clone();
        let is_listed = listed.iter().any(|member| member.name == name);
        if !is_listed && !self.lost.contains_key(&at) {
            self.anew(at, 0)?;
        }
        let replaces = if is_listed { name.as_str() } else { "" };
        self.add(leader, at, replaces).await;
        Ok(())
    }

    /// Starts a member that had this id again, with an empty disk.
    fn anew(&mut self, at: usize, id: u64) -> Result<()> {
        self.lost.insert(at, id);
        self.fleet.wipe(at)?;
        self.fleet.start_member(at)
    }
}

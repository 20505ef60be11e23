//! Owns: changes of a formed cluster: members that join, are replaced, get another address, or leave.
//!
//! Invariant: an id is given out by the log entry that lists its member, above every index before it, so never twice; a
//! member joins without a vote, and `joining` sees to the rest, whoever leads. A change that would leave voters of
//! which no majority answers and keeps up is refused.
//! Absent: who may ask, which the coordinator checks; the two steps of a change of voters; see `voters`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;

use crate::cluster::hello;
use crate::errors::ClusterError;
use crate::member::{Joins, MemberRecord};
use crate::pace::{KEEPS_UP_WITHIN, LACKS_MAX, LOOK_EVERY, Pace};
use crate::running::Running;
use crate::transfer::step_aside;
use crate::voters::changed;
use crate::{reads, voters};

/// The members as the leader that is asked knows them.
struct Known {
    members: BTreeMap<u64, MemberRecord>,
    voters: BTreeSet<u64>,
}

impl Known {
    fn of(running: &Running) -> Self {
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let config = &metrics.membership_config;
        let voters: BTreeSet<u64> = config.voter_ids().collect();
        Self { members: config.nodes().map(|(id, member)| (*id, member.clone())).collect(), voters }
    }

    fn named(&self, name: &str, voter: bool) -> Option<&MemberRecord> {
        let mut of_name = self.members.values().filter(|member| member.name == name);
        of_name.find(|member| self.voters.contains(&member.id) == voter)
    }

    fn unknown(&self, name: &str) -> ClusterError {
        let names: BTreeSet<&str> = self.members.values().map(|m| m.name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        ClusterError::NoMember(format!(
            "there is no member {name:?}; there are {}",
            names.join(", ")
        ))
    }

    /// Whose place a member is to take, by name.
    fn replaced(&self, name: Option<&str>) -> Result<Option<u64>, ClusterError> {
        let Some(name) = name else { return Ok(None) };
        if let Some(old) = self.named(name, true) {
            return Ok(Some(old.id));
        }
        Err(match self.named(name, false) {
            Some(_) => ClusterError::Refused(format!(
                "member {name:?} is a learner, which is in nobody's place: rolloutctl member remove {name}, then member add"
            )),
            None => self.unknown(name),
        })
    }

    /// The learner that an earlier call of the same words has listed already. What it can run, it said itself.
    fn listed(&self, fresh: &MemberRecord) -> Option<u64> {
        let listed = self.named(&fresh.name, false)?;
        let (version_min, version_max) = (fresh.version_min, fresh.version_max);
        let same = MemberRecord { id: fresh.id, version_min, version_max, ..listed.clone() };
        (same == *fresh).then_some(listed.id)
    }

    /// Refuses the place of a voter that another takes already: the voter leaves once, and both would have a vote.
    fn check_place(&self, replaced: Option<u64>) -> Result<(), ClusterError> {
        let Some(old) = replaced.and_then(|id| self.members.get(&id)) else { return Ok(()) };
        let takes = Joins::Voter { replaces: Some(old.id) };
        let mut learners = self.members.values().filter(|m| !self.voters.contains(&m.id));
        learners.find(|member| member.joins == takes).map_or(Ok(()), |first| {
            Err(ClusterError::Refused(format!(
                "member {:?} takes the place of {:?} already; wait for it, or {}",
                first.name,
                old.name,
                self.take_out(&first.name)
            )))
        })
    }

    /// How a member leaves that has not got its vote: a removal by name takes all of that name.
    fn take_out(&self, name: &str) -> String {
        match self.ids(name).len() {
            0 | 1 => format!("take it out first: rolloutctl member remove {name}"),
            _ => format!(
                "take out both that are called so: rolloutctl member remove {name}, then member add"
            ),
        }
    }

    /// Refuses a member that would be mistaken for another.
    fn check_new(&self, fresh: &MemberRecord, replaced: Option<u64>) -> Result<(), ClusterError> {
        self.check_place(replaced)?;
        for member in self.members.values().filter(|member| Some(member.id) != replaced) {
            if member.name == fresh.name {
                let what = if self.voters.contains(&member.id) { "a voter" } else { "a learner" };
                return Err(ClusterError::Refused(format!(
                    "there is a member {:?} already, {what} at {}",
                    member.name, member.peer_addr
                )));
            }
            if member.peer_addr == fresh.peer_addr {
                return Err(ClusterError::Refused(format!(
                    "member {:?} has the peer address {}",
                    member.name, member.peer_addr
                )));
            }
        }
        Ok(())
    }

    /// The ids of the members of that name: two where one takes the place of the other.
    fn ids(&self, name: &str) -> BTreeSet<u64> {
        self.members.values().filter(|member| member.name == name).map(|member| member.id).collect()
    }

    /// What to do before the last voter leaves.
    fn another_voter(&self, gone: &BTreeSet<u64>) -> String {
        let mut rest = self.members.values().filter(|member| !gone.contains(&member.id));
        match rest.next() {
            Some(learner) => {
                format!("give another its vote first: rolloutctl member promote {}", learner.name)
            }
            None => "add another member first: rolloutctl member add --help".to_owned(),
        }
    }

    fn names(&self, ids: &BTreeSet<u64>) -> String {
        let names = ids.iter().filter_map(|id| self.members.get(id).map(|m| m.name.as_str()));
        names.collect::<Vec<_>>().join(", ")
    }
}

/// What a voter says when it is asked now.
enum Said {
    Answers,
    /// It waits with an empty disk. Its vote is lost, and only another member can take its place.
    LostItsDisk,
    /// Nobody answers there, or another member does. It may be alive.
    Nothing,
}

async fn ask(running: &Running, member: &MemberRecord) -> Said {
    if member.id == running.context.me {
        return Said::Answers;
    }
    match hello(&running.context.dialer, member).await {
        Ok(answer) if answer.member_id == member.id => Said::Answers,
        Ok(answer) if answer.cluster_id.is_empty() => Said::LostItsDisk,
        _ => Said::Nothing,
    }
}

/// Refuses to go on with `keep` for voters if they could not commit anything at once. They are asked now: what was heard a
/// moment ago may be dead, and a change that no majority can commit stops the cluster. So does, for as long as it takes, one
/// that a member has to catch up for.
async fn check_majority(
    running: &Running,
    known: &Known,
    keep: &BTreeSet<u64>,
    gone: &str,
) -> Result<(), ClusterError> {
    let asked = keep
        .iter()
        .filter_map(|id| known.members.get(id))
        .map(async |member| (member, ask(running, member).await));
    let (mut answering, mut lost, mut silent) = (BTreeSet::new(), Vec::new(), Vec::new());
    for (member, said) in futures::future::join_all(asked).await {
        match said {
            Said::Answers => drop(answering.insert(member.id)),
            Said::LostItsDisk => lost.push(member),
            Said::Nothing => silent.push(member),
        }
    }
    let (answer, needed) = (answering.len(), keep.len() / 2 + 1);
    if answer >= needed {
        return check_pace(running, known, &answering, needed, gone).await;
    }
    Err(ClusterError::Unsafe(format!(
        "without {gone} there would be {} voters, of which {answer} would answer and {needed} are needed; {}",
        keep.len(),
        mended(&lost, &silent)
    )))
}

/// How voters are brought back. The place of one that merely does not answer is not given away: it may be alive.
fn mended(lost: &[&MemberRecord], silent: &[&MemberRecord]) -> String {
    let replace = |member: &&MemberRecord| {
        format!("{} has lost its disk, so first: {}", member.name, member.replace_command())
    };
    let mut steps: Vec<String> = lost.iter().map(replace).collect();
    if !silent.is_empty() {
        let names: Vec<&str> = silent.iter().map(|member| member.name.as_str()).collect();
        steps.push(format!(
            "bring back {} first: start it; rolloutctl status says whether it is lost for good, and how to replace it",
            names.join(", ")
        ));
    }
    steps.join("; ")
}

/// Refuses where of those that answer fewer than `needed` have nearly all of the log, this leader included.
async fn check_pace(
    running: &Running,
    known: &Known,
    answering: &BTreeSet<u64>,
    needed: usize,
    gone: &str,
) -> Result<(), ClusterError> {
    let give_up = Instant::now() + KEEPS_UP_WITHIN;
    loop {
        let behind = behind(running, answering);
        if answering.len() - behind.len() >= needed {
            return Ok(());
        }
        if Instant::now() >= give_up {
            return Err(ClusterError::Unsafe(format!(
                "without {gone} nothing could be written until {} caught up: more than {LACKS_MAX} entries are lacking \
                 there; rolloutctl member list says how far each is",
                known.names(&behind)
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Of these members those that have not nearly all of this leader's log.
fn behind(running: &Running, of: &BTreeSet<u64>) -> BTreeSet<u64> {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    let lease = running.config.lease();
    let close = |id: u64| id == running.context.me || Pace::of(&metrics, id, lease).is_close();
    of.iter().copied().filter(|id| !close(*id)).collect()
}

/// Lists `fresh`, a waiting member, as one that joins, in the place of the voter `replace` if one is named, and returns
/// its id. It is made part of the cluster, sent the log and given its vote afterwards. Its build must be able to run what the
/// cluster runs; which versions those are, it says itself.
pub(crate) async fn add_member(
    running: &Running,
    mut fresh: MemberRecord,
    replace: Option<&str>,
) -> Result<u64, ClusterError> {
    if let Some(problem) = fresh.problem() {
        return Err(ClusterError::BadMembers(problem));
    }
    let _alone = running.changing.lock().await;
    let (_, index) = reads::confirm(running).await?;
    voters::finish(running).await?;
    let known = Known::of(running);
    let replaced = known.replaced(replace)?;
    if let Joins::Voter { replaces } = &mut fresh.joins {
        *replaces = replaced;
    }
    if let Some(id) = known.listed(&fresh) {
        return still_joins(running, &known, &fresh, id).await;
    }
    known.check_new(&fresh, replaced)?;
    let answer = hello(&running.context.dialer, &fresh).await?;
    if !answer.cluster_id.is_empty() {
        return Err(ClusterError::Refused(format!(
            "member {} belongs to cluster {} already; start it with an empty data directory",
            fresh.name, answer.cluster_id
        )));
    }
    let version = running.machine.read(|state| state.ledger.version());
    (fresh.version_min, fresh.version_max) = (answer.version_min, answer.version_max);
    if !(fresh.version_min..=fresh.version_max).contains(&version) {
        return Err(ClusterError::Refused(format!(
            "member {} can run cluster versions {} to {}, and the cluster has version {version}: start a build there that \
             can run it",
            fresh.name, fresh.version_min, fresh.version_max
        )));
    }
    let highest = known.members.keys().max().copied().unwrap_or(0);
    let id = index.max(highest) + 1;
    fresh.id = id;
    tracing::info!(member = fresh.name, id, replaces = replaced, "a member joins");
    running.raft.add_learner(id, fresh, false).await.map_err(changed)?;
    Ok(id)
}

/// The id of a learner that was listed before. One that had some of the log and waits with an empty disk now does not join by
/// itself: an id belongs to one data directory.
async fn still_joins(
    running: &Running,
    known: &Known,
    fresh: &MemberRecord,
    id: u64,
) -> Result<u64, ClusterError> {
    let had_some = {
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        Pace::of(&metrics, id, running.config.lease()).matched.is_some()
    };
    // One that does not answer now may do so later.
    let empty = had_some
        && hello(&running.context.dialer, fresh)
            .await
            .is_ok_and(|answer| answer.cluster_id.is_empty());
    match empty {
        false => Ok(id),
        true => Err(ClusterError::Refused(format!(
            "member {:?} lost its disk while it joined; {}",
            fresh.name,
            known.take_out(&fresh.name)
        ))),
    }
}

/// Has a learner get a vote as soon as it has caught up.
pub(crate) async fn promote_member(running: &Running, name: &str) -> Result<(), ClusterError> {
    let _alone = running.changing.lock().await;
    reads::confirm(running).await?;
    voters::finish(running).await?;
    let known = Known::of(running);
    let Some(learner) = known.named(name, false) else {
        return known.named(name, true).map(drop).ok_or_else(|| known.unknown(name));
    };
    if matches!(learner.joins, Joins::Voter { .. }) {
        return Ok(());
    }
    let member = MemberRecord { joins: Joins::default(), ..learner.clone() };
    set(running, member).await
}

/// Changes the record of the member of that id: its addresses, its zone, and what it can run. All else stays as it is when
/// the change is made, whatever was known when it was asked for.
pub(crate) async fn update_member(
    running: &Running,
    wanted: MemberRecord,
) -> Result<(), ClusterError> {
    if let Some(problem) = wanted.problem() {
        return Err(ClusterError::BadMembers(problem));
    }
    let _alone = running.changing.lock().await;
    reads::confirm(running).await?;
    voters::finish(running).await?;
    let known = Known::of(running);
    let (member, moves) = match known.members.get(&wanted.id) {
        Some(now) if now.name == wanted.name => {
            let moves = now.peer_addr != wanted.peer_addr;
            (MemberRecord { joins: now.joins, ..wanted }, moves)
        }
        _ => {
            let text = format!("there is no member {:?} with id {}", wanted.name, wanted.id);
            return Err(ClusterError::Refused(text));
        }
    };
    if known.members.get(&member.id) == Some(&member) {
        return Ok(());
    }
    let mut others = known.members.values().filter(|other| other.id != member.id);
    if let Some(other) = others.find(|other| moves && other.peer_addr == member.peer_addr) {
        let text = format!("member {:?} has the peer address {}", other.name, other.peer_addr);
        return Err(ClusterError::Refused(text));
    }
    // Whoever answers at a new address must be this very member: two members behind one id would split the cluster. Where this
    // one moves itself, what the others will dial is tried from here.
    if moves || member.id != running.context.me {
        let answer = hello(&running.context.dialer, &member).await?;
        if answer.member_id != member.id || answer.cluster_id != running.context.cluster_text {
            return Err(ClusterError::Refused(format!(
                "{} is member {} of cluster {:?}, not member {} of this cluster",
                member.peer_addr, answer.member_id, answer.cluster_id, member.id
            )));
        }
    }
    set(running, member).await
}

async fn set(running: &Running, member: MemberRecord) -> Result<(), ClusterError> {
    let change = ChangeMembers::SetNodes(BTreeMap::from([(member.id, member)]));
    running.raft.change_membership(change, true).await.map(drop).map_err(changed)
}

/// Takes a member out of the cluster. A leader that is to go hands leadership over first, and its successor is to be
/// asked.
pub(crate) async fn remove_member(running: &Running, name: &str) -> Result<(), ClusterError> {
    let _alone = running.changing.lock().await;
    reads::confirm(running).await?;
    let known = Known::of(running);
    if known.ids(name).is_empty() {
        return Err(known.unknown(name));
    }
    voters::finish(running).await?;
    let known = Known::of(running);
    let gone = known.ids(name);
    if gone.is_empty() {
        // The change that was finished took it out.
        return Ok(());
    }
    let keep: BTreeSet<u64> = known.voters.difference(&gone).copied().collect();
    if keep.is_empty() {
        return Err(ClusterError::Unsafe(format!(
            "{name} is the last voter: the cluster would be gone; {}",
            known.another_voter(&gone)
        )));
    }
    if keep.len() < known.voters.len() {
        check_majority(running, &known, &keep, name).await?;
        if gone.contains(&running.context.me) {
            return Err(step_aside(running).await);
        }
        voters::replace(running, keep).await?;
    }
    let learners: BTreeSet<u64> = gone.difference(&known.voters).copied().collect();
    if !learners.is_empty() {
        let change = ChangeMembers::RemoveNodes(learners);
        running.raft.change_membership(change, false).await.map_err(changed)?;
    }
    tracing::info!(member = name, "a member was removed");
    Ok(())
}

/// Gives `learner` its vote, and the place of the voter that it replaces.
pub(crate) async fn promote(running: &Running, learner: &MemberRecord) -> Result<(), ClusterError> {
    let _alone = running.changing.lock().await;
    voters::finish(running).await?;
    let known = Known::of(running);
    let replaced = match learner.joins {
        Joins::Voter { replaces } => replaces,
        Joins::Learner => return Ok(()),
    };
    if replaced == Some(running.context.me) {
        return Err(step_aside(running).await);
    }
    let stays = known.voters.iter().copied().filter(|id| Some(*id) != replaced);
    let keep: BTreeSet<u64> = stays.chain([learner.id]).collect();
    voters::replace(running, keep).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_voter_that_has_lost_its_disk_is_to_be_replaced() {
        let member = |name: &str| MemberRecord {
            name: name.into(),
            peer_addr: format!("{name}:7421"),
            client_addr: format!("{name}:7420"),
            ..MemberRecord::default()
        };
        let (b, c, d) = (member("b"), member("c"), member("d"));
        let back = "bring back c, d first: start it; rolloutctl status says whether it is lost for good, and how to replace it";
        assert_eq!(mended(&[], &[&c, &d]), back);
        let replace = "b has lost its disk, so first: rolloutctl member replace b --peer-addr b:7421 --client-addr b:7420";
        assert_eq!(mended(&[&b], &[]), replace);
        assert_eq!(mended(&[&b], &[&c, &d]), format!("{replace}; {back}"));
    }

    #[test]
    fn before_the_last_voter_leaves_another_gets_a_vote() {
        let member = |id: u64, name: &str| {
            (id, MemberRecord { id, name: name.into(), ..MemberRecord::default() })
        };
        let gone = BTreeSet::from([1]);
        let alone = Known { members: BTreeMap::from([member(1, "a")]), voters: gone.clone() };
        assert_eq!(
            alone.another_voter(&gone),
            "add another member first: rolloutctl member add --help"
        );
        let members = BTreeMap::from([member(1, "a"), member(4, "d")]);
        let with_learner = Known { members, voters: gone.clone() };
        let promote = "give another its vote first: rolloutctl member promote d";
        assert_eq!(with_learner.another_voter(&gone), promote);
    }
}

//! Assigns the work of OpenAI batches to members: reading their files, and writing their output.
//!
//! *Invariant:* a member has at most [`AT_A_TIME`] batches, and the others wait in the ledger, which bounds their
//! number. The leader gets work only if no follower answers, so that reading files does not delay heartbeats.
//! Namespaces take turns: the one whose batches have the fewest owners comes first, and within it the oldest batch. If
//! an owner is gone, another member gets its work under a later fence, so a member that is only slow does no harm.
//!
//! Absent: the work itself. A member finds its own in the ledger (`Ledger::batch_tasks_of`).

use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::LeaderState;
use rollout_ledger::{BatchTask, Ledger, OPENAI_API_VERSION, OpKind, op};
use rollout_raft::{MemberReachability, Reachability};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// How often the leader checks for work without an owner.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Batches that one member has at a time.
const AT_A_TIME: usize = 2;
/// How long a member does not answer before its work goes to another one. Members are asked once a second, and another
/// member goes on within 5 s of a death.
const GONE_AFTER: Duration = Duration::from_secs(3);

/// Which members may get work, and which may keep theirs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Candidates {
    /// Members that answer, in the order in which they get work.
    answering: Vec<u64>,
    /// Members that may still answer.
    unclear: Vec<u64>,
}

impl Candidates {
    /// `all` begins with the leader, which leads since `leads_since`.
    fn of(all: &[MemberReachability], leads_since: Instant, now: Instant) -> Self {
        let Some((leader, others)) = all.split_first() else { return Self::default() };
        let recent = |at: Instant| now.saturating_duration_since(at) < GONE_AFTER;
        let running = others.iter().filter(|member| member.reachability != Reachability::Stopped);
        let (answering, others): (Vec<_>, Vec<_>) =
            running.partition(|member| member.as_of.is_some_and(recent));
        // An answer from before this epoch may be old, because only this member asked then.
        let unclear = others.iter().filter(|_| recent(leads_since)).map(|member| member.id);
        let mut unclear: Vec<u64> = unclear.collect();
        let mut answering: Vec<u64> = answering.iter().map(|member| member.id).collect();
        match answering.is_empty() {
            true => answering.push(leader.id),
            false => unclear.push(leader.id),
        }
        Self { answering, unclear }
    }

    fn has(&self, member: u64) -> bool {
        self.answering.contains(&member) || self.unclear.contains(&member)
    }
}

/// The batches to assign now, each with its next owner. `tasks` are in the order of creation.
fn assignments(tasks: &[BatchTask], members: &Candidates) -> Vec<(String, u64)> {
    let mut loads: BTreeMap<u64, usize> = members.answering.iter().map(|id| (*id, 0)).collect();
    let mut owned: BTreeMap<&str, usize> = BTreeMap::new();
    let mut waiting: BTreeMap<&str, VecDeque<(usize, &BatchTask)>> = BTreeMap::new();
    for (age, task) in tasks.iter().enumerate() {
        match task.owner.filter(|owner| members.has(*owner)) {
            Some(owner) => {
                *owned.entry(&task.namespace).or_default() += 1;
                loads.entry(owner).and_modify(|load| *load += 1);
            }
            None => waiting.entry(&task.namespace).or_default().push_back((age, task)),
        }
    }
    let mut assigned = Vec::new();
    loop {
        // A member with the same load comes first if it does in the list.
        let free = members.answering.iter().filter(|id| loads[id] < AT_A_TIME);
        let Some(member) = free.min_by_key(|id| loads[id]).copied() else { break };
        let turns = waiting.iter().filter_map(|(name, queue)| {
            let owners = owned.get(name).copied().unwrap_or_default();
            Some((owners, queue.front()?.0, *name))
        });
        let Some((_, _, name)) = turns.min() else { break };
        let Some((_, task)) = waiting.get_mut(name).and_then(VecDeque::pop_front) else { break };
        *owned.entry(name).or_default() += 1;
        loads.entry(member).and_modify(|load| *load += 1);
        assigned.push((task.batch.clone(), member));
    }
    assigned
}

/// Assigns work for as long as the epoch lasts.
pub(crate) async fn assign(leader: Arc<LeaderState>) {
    let leads_since = Instant::now();
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        look.tick().await;
        if leader.node.ledger(Ledger::version) < OPENAI_API_VERSION || !leader.node.lease_valid() {
            continue;
        }
        let tasks = leader.node.ledger(|l| l.batch_tasks());
        if tasks.is_empty() {
            continue;
        }
        // Outside the ledger's lock, because it reads what consensus publishes.
        let members = Candidates::of(&leader.node.reachability(), leads_since, Instant::now());
        for (batch, member) in assignments(&tasks, &members) {
            let assign = op::AssignBatch { batch: batch.clone(), member };
            match leader.applied(OpKind::AssignBatch(assign)).await {
                Ok(()) => tracing::info!(batch, member, "the work of a batch was assigned"),
                // The next look assigns it if it still has work.
                Err(why) => tracing::debug!(batch, member, why, "a batch was not assigned"),
            }
        }
    }
}

#[cfg(test)]
mod tests;

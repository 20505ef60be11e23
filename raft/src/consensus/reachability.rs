//! Owns: this member's knowledge of the other members' processes: whether each answers, since when, and whether it
//! said that it is stopping.
//!
//! Invariant: a member counts as unreachable, or as reachable again, only after it was so for [`STEADY_AFTER`] and
//! for [`ASKS_MIN`] questions in a row, so a suspension of this machine or a flapping link changes nothing.
//! Absent: which member is asked and when, see `rtt`; the consequences. The leader reports them to the ledger.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollout_proto::v1::HelloRequest;

use crate::consensus::running::Running;
use crate::member::MemberRecord;
use crate::peer::Lane;

/// How long a member must answer before it counts as reachable, or fail to answer before it counts as unreachable.
const STEADY_AFTER: Duration = Duration::from_secs(5);
/// The same as a number of questions in a row. After a suspension the first missing answer may just be late.
const ASKS_MIN: u32 = 3;
/// How long a stopping member waits until the others have heard of it.
const GOODBYE_LIMIT: Duration = Duration::from_millis(500);

/// The state of a member's latest known process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reachability {
    /// Too little is known yet.
    Unclear,
    /// It answers.
    Reachable,
    /// It does not.
    Unreachable,
    /// It announced that it stops.
    Stopped,
}

/// The reachability of one member's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberReachability {
    pub id: u64,
    pub name: String,
    /// When its process started, in milliseconds since 1970 by its own clock; 0 while it has not answered.
    pub started_ms: u64,
    /// When this member asked the question that the process answered last, or heard that it stops. The member may have
    /// another process since then.
    pub as_of: Option<Instant>,
    pub reachability: Reachability,
}

/// The reachability of all other members.
#[derive(Default)]
pub(crate) struct ReachabilityTable(Mutex<BTreeMap<u64, ReachabilityRecord>>);

#[derive(Default)]
struct ReachabilityRecord {
    started_ms: u64,
    as_of: Option<Instant>,
    /// The start time of the process that announced that it stops.
    stops: Option<u64>,
    streak: Option<AnswerStreak>,
}

/// Questions in a row that had the same outcome.
#[derive(Clone, Copy)]
struct AnswerStreak {
    answered: bool,
    /// When the first of these questions was asked.
    since: Instant,
    times: u32,
}

impl ReachabilityTable {
    /// The member's process with that start time answered a question asked at `asked`.
    pub(crate) fn answered(&self, id: u64, started_ms: u64, asked: Instant) {
        let mut all = self.0.lock();
        let known = all.entry(id).or_default();
        (known.started_ms, known.as_of) = (started_ms, Some(asked));
        known.count(true, asked);
    }

    /// The member did not answer a question asked at `asked`.
    pub(crate) fn silent(&self, id: u64, asked: Instant) {
        self.0.lock().entry(id).or_default().count(false, asked);
    }

    /// The member's process with that start time stops.
    pub(crate) fn stops(&self, id: u64, started_ms: u64) {
        let mut all = self.0.lock();
        let known = all.entry(id).or_default();
        (known.started_ms, known.stops) = (started_ms, Some(started_ms));
        known.as_of = Some(Instant::now());
    }

    /// Drops those that are no longer members.
    pub(crate) fn keep(&self, members: &[MemberRecord]) {
        self.0.lock().retain(|id, _| members.iter().any(|member| member.id == *id));
    }

    /// The reachability of a member.
    pub(crate) fn of(&self, member: &MemberRecord, now: Instant) -> MemberReachability {
        let all = self.0.lock();
        let known = all.get(&member.id);
        MemberReachability {
            id: member.id,
            name: member.name.clone(),
            started_ms: known.map_or(0, |known| known.started_ms),
            as_of: known.and_then(|known| known.as_of),
            reachability: known.map_or(Reachability::Unclear, |known| known.reachability(now)),
        }
    }
}

impl ReachabilityRecord {
    fn count(&mut self, answered: bool, since: Instant) {
        match &mut self.streak {
            Some(streak) if streak.answered == answered => {
                streak.times = streak.times.saturating_add(1)
            }
            streak => *streak = Some(AnswerStreak { answered, since, times: 1 }),
        }
    }

    fn reachability(&self, now: Instant) -> Reachability {
        if self.stops.is_some_and(|stops| stops == self.started_ms) {
            return Reachability::Stopped;
        }
        let steady = |streak: &AnswerStreak| {
            streak.times >= ASKS_MIN && now.saturating_duration_since(streak.since) >= STEADY_AFTER
        };
        match self.streak.filter(steady) {
            Some(AnswerStreak { answered: true, .. }) => Reachability::Reachable,
            Some(AnswerStreak { answered: false, .. }) => Reachability::Unreachable,
            None => Reachability::Unclear,
        }
    }
}

/// Tells every other member that this process stops. A member that does not hear of it takes this process for lost.
pub(crate) async fn announce_stop(running: &Running) {
    let context = &running.context;
    let farewells = running.peers_except(context.me).into_iter().map(|member| {
        let goodbye = HelloRequest {
            cluster_id: context.cluster_text.clone(),
            from: context.me,
            stops_started_ms: running.started_ms,
        };
        async move {
            let mut client = context.dialer.client(&member, Lane::Log).ok()?;
            client.hello(goodbye).await.ok().map(drop)
        }
    });
    let farewells = futures::future::join_all(farewells);
    drop(tokio::time::timeout(GOODBYE_LIMIT, farewells).await);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Joins;
    use crate::node::Node;
    use crate::peer::handovers::{Handover, LeaderLeft};
    use crate::test_member::until;

    fn member() -> MemberRecord {
        MemberRecord {
            id: 2,
            name: "c2".into(),
            peer_addr: "127.0.0.1:1".into(),
            client_addr: "127.0.0.1:2".into(),
            zone: String::new(),
            version_min: 1,
            version_max: 1,
            joins: Joins::default(),
            adopted: false,
        }
    }

    /// The reachability after questions once a second from `from` on.
    fn ask(table: &ReachabilityTable, from: Instant, outcomes: &[bool]) -> Reachability {
        let mut at = from;
        for (second, answered) in (0..).zip(outcomes) {
            at = from + Duration::from_secs(second);
            match answered {
                true => table.answered(2, 100, at),
                false => table.silent(2, at),
            }
        }
        table.of(&member(), at).reachability
    }

    #[test]
    fn a_member_is_unreachable_after_five_steady_seconds_and_flapping_is_no_change() {
        let (table, now) = (ReachabilityTable::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(table.of(&member(), now).reachability, Reachability::Unclear);
        assert_eq!(ask(&table, now, &[true; 5]), Reachability::Unclear);
        assert_eq!(ask(&table, after(5), &[true]), Reachability::Reachable);
        assert_eq!(ask(&table, after(6), &[false; 5]), Reachability::Unclear);
        assert_eq!(ask(&table, after(11), &[false]), Reachability::Unreachable);
        let flapping = [true, false].repeat(100);
        assert_eq!(ask(&table, after(12), &flapping), Reachability::Unclear);
        assert_eq!(ask(&table, after(300), &[true; 6]), Reachability::Reachable);
        // This machine was suspended: one question was asked before and is late.
        table.silent(2, after(306));
        assert_eq!(table.of(&member(), after(1000)).reachability, Reachability::Unclear);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_next_leader_knows_why_the_last_one_left_and_hears_its_goodbye() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut nodes, mut records) = (Vec::new(), Vec::new());
        for name in ["a", "b", "c"] {
            let (node, record) = crate::test_member::member(dir.path(), name).await;
            nodes.push(node);
            records.push(record);
        }
        nodes[0].bootstrap(records).await.expect("a cluster");
        until("one leads", || nodes.iter().any(Node::lease_valid)).await;
        let leads = nodes.iter().position(Node::lease_valid).expect("one");
        let term = nodes[leads].barrier().await.expect("it leads");
        let name = nodes[leads].config().name.clone();
        nodes[leads].leave_to_stop().await.expect("handed over");
        nodes[leads].announce_stop().await;
        let next = || (0..3).find(|at| *at != leads && nodes[*at].lease_valid());
        until("another one leads", || next().is_some()).await;
        let next = &nodes[next().expect("one")];
        let why = LeaderLeft::HandedOver(Handover::Stopping);
        assert_eq!(next.leader_left(term, &name), why);
        assert_ne!(next.leader_left(term + 100, &name), why);
        let members = next.reachability();
        assert_eq!(members.len(), 3);
        let former = members.iter().find(|at| at.name == name).expect("a member");
        assert_eq!(former.reachability, Reachability::Stopped);
        assert!(former.started_ms > 0);
        for node in &nodes {
            node.stop().await;
        }
    }

    #[test]
    fn a_process_that_said_it_stops_has_stopped_until_the_next_one_answers() {
        let (table, now) = (ReachabilityTable::default(), Instant::now());
        table.answered(2, 100, now);
        table.stops(2, 100);
        table.answered(2, 100, now);
        let known = table.of(&member(), now);
        assert_eq!((known.reachability, known.started_ms), (Reachability::Stopped, 100));
        table.answered(2, 200, now);
        let known = table.of(&member(), now);
        assert_eq!((known.reachability, known.started_ms), (Reachability::Unclear, 200));
        let later = now + Duration::from_secs(1);
        table.silent(2, later);
        assert_eq!(table.of(&member(), later).as_of, Some(now), "this one did not answer");
        table.answered(2, 200, later);
        assert_eq!(table.of(&member(), later).as_of, Some(later));
        table.keep(&[]);
        assert_eq!(table.of(&member(), now).started_ms, 0);
    }
}

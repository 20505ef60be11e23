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

use crate::member::MemberRecord;
use crate::peer::Lane;
use crate::running::Running;

/// How long a member must answer before it counts as reachable, or fail to answer before it counts as unreachable.
const STEADY_AFTER: Duration = Duration::from_secs(5);
/// The same as a number of questions in a row. After a suspension the first missing answer may just be late.
const ASKS_MIN: u32 = 3;
/// How long a stopping member waits until the others have heard of it.
const GOODBYE_LIMIT: Duration = Duration::from_millis(500);

/// The state of a member's latest known process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contact {
    /// Too little is known yet.
    Unclear,
    /// It answers.
    Reachable,
    /// It does not.
    Unreachable,
    /// It announced that it stops.
    Stopped,
}

/// The contact with one member's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberContact {
    pub id: u64,
    pub name: String,
    /// When its process started, in milliseconds since 1970 by its own clock; 0 while it has not answered.
    pub started_ms: u64,
    /// When this member asked the question that the process answered last, or heard that it stops. The member may have
    /// another process since then.
    pub as_of: Option<Instant>,
    /// Its state.
    pub contact: Contact,
}

/// The contacts with all other members.
#[derive(Default)]
pub(crate) struct Contacts(Mutex<BTreeMap<u64, ContactRecord>>);

#[derive(Default)]
struct ContactRecord {
    started_ms: u64,
    as_of: Option<Instant>,
    /// The start time of the process that announced that it stops.
    stops: Option<u64>,
    asked: Option<ContactStreak>,
}

/// Questions in a row that had the same outcome.
#[derive(Clone, Copy)]
struct ContactStreak {
    answered: bool,
    /// When the first of these questions was asked.
    since: Instant,
    times: u32,
}

impl Contacts {
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

    /// Drops the contacts that are no longer members.
    pub(crate) fn keep(&self, members: &[MemberRecord]) {
        self.0.lock().retain(|id, _| members.iter().any(|member| member.id == *id));
    }

    /// The contact with a member.
    pub(crate) fn of(&self, member: &MemberRecord, now: Instant) -> MemberContact {
        let all = self.0.lock();
        let known = all.get(&member.id);
        MemberContact {
            id: member.id,
            name: member.name.clone(),
            started_ms: known.map_or(0, |known| known.started_ms),
            as_of: known.and_then(|known| known.as_of),
            contact: known.map_or(Contact::Unclear, |known| known.contact(now)),
        }
    }
}

impl ContactRecord {
    fn count(&mut self, answered: bool, since: Instant) {
        match &mut self.asked {
            Some(asked) if asked.answered == answered => {
                asked.times = asked.times.saturating_add(1)
            }
            asked => *asked = Some(ContactStreak { answered, since, times: 1 }),
        }
    }

    fn contact(&self, now: Instant) -> Contact {
        if self.stops.is_some_and(|stops| stops == self.started_ms) {
            return Contact::Stopped;
        }
        let steady = |asked: &ContactStreak| {
            asked.times >= ASKS_MIN && now.saturating_duration_since(asked.since) >= STEADY_AFTER
        };
        match self.asked.filter(steady) {
            Some(ContactStreak { answered: true, .. }) => Contact::Reachable,
            Some(ContactStreak { answered: false, .. }) => Contact::Unreachable,
            None => Contact::Unclear,
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
    use crate::test_member::until;
    use crate::transfer::{Handover, LeaderLeft};

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

    /// The contact after questions once a second from `from` on.
    fn ask(contacts: &Contacts, from: Instant, outcomes: &[bool]) -> Contact {
        let mut at = from;
        for (second, answered) in (0..).zip(outcomes) {
            at = from + Duration::from_secs(second);
            match answered {
                true => contacts.answered(2, 100, at),
                false => contacts.silent(2, at),
            }
        }
        contacts.of(&member(), at).contact
    }

    #[test]
    fn a_member_is_unreachable_after_five_steady_seconds_and_flapping_is_no_change() {
        let (contacts, now) = (Contacts::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(contacts.of(&member(), now).contact, Contact::Unclear);
        assert_eq!(ask(&contacts, now, &[true; 5]), Contact::Unclear);
        assert_eq!(ask(&contacts, after(5), &[true]), Contact::Reachable);
        assert_eq!(ask(&contacts, after(6), &[false; 5]), Contact::Unclear);
        assert_eq!(ask(&contacts, after(11), &[false]), Contact::Unreachable);
        let flapping = [true, false].repeat(100);
        assert_eq!(ask(&contacts, after(12), &flapping), Contact::Unclear);
        assert_eq!(ask(&contacts, after(300), &[true; 6]), Contact::Reachable);
        // This machine was suspended: one question was asked before and is late.
        contacts.silent(2, after(306));
        assert_eq!(contacts.of(&member(), after(1000)).contact, Contact::Unclear);
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
        let contacts = next.contacts();
        assert_eq!(contacts.len(), 3);
        let former = contacts.iter().find(|at| at.name == name).expect("a member");
        assert_eq!(former.contact, Contact::Stopped);
        assert!(former.started_ms > 0);
        for node in &nodes {
            node.stop().await;
        }
    }

    #[test]
    fn a_process_that_said_it_stops_has_stopped_until_the_next_one_answers() {
        let (contacts, now) = (Contacts::default(), Instant::now());
        contacts.answered(2, 100, now);
        contacts.stops(2, 100);
        contacts.answered(2, 100, now);
        let known = contacts.of(&member(), now);
        assert_eq!((known.contact, known.started_ms), (Contact::Stopped, 100));
        contacts.answered(2, 200, now);
        let known = contacts.of(&member(), now);
        assert_eq!((known.contact, known.started_ms), (Contact::Unclear, 200));
        let later = now + Duration::from_secs(1);
        contacts.silent(2, later);
        assert_eq!(contacts.of(&member(), later).as_of, Some(now), "this one did not answer");
        contacts.answered(2, 200, later);
        assert_eq!(contacts.of(&member(), later).as_of, Some(later));
        contacts.keep(&[]);
        assert_eq!(contacts.of(&member(), now).started_ms, 0);
    }
}

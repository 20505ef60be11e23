//! Owns: the read lease: when a leader may answer reads without asking a quorum, and what each member promises for
//! it.
//!
//! Invariant: while a leader answers under its lease, no other leader has been elected. Each member of a quorum has
//! promised that for one lease after it heard the leader, even if it restarts. The leader counts a shorter time, from
//! when it sent the heartbeat, and counts no time in which its machine may have been suspended. See
//! docs/adr/2026-11-24-read-lease.md.
//! Absent: handovers. Once a leader begins to hand over, openraft refuses its reads.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use openraft::ReadPolicy;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::linearizable_read::LinearizerOption;
use parking_lot::Mutex;
use rollout_ledger::seeded::{Bug, seeded};

use crate::consensus::running::Running;
use crate::consensus::suspended_time::suspended;
use crate::state::log_store::LogStore;

/// The promise of this member: for one lease after it has heard a leader, it votes for no member.
pub(crate) struct Promise {
    lease: Duration,
    /// Until when it keeps the promise that an earlier process of this member made.
    kept_until: Option<Instant>,
}

impl Promise {
    /// Takes over the promise of an earlier process, and writes this one's to disk before any member hears of it.
    pub(crate) async fn make(store: &LogStore, lease: Duration) -> io::Result<Self> {
        let earlier = store.promised()?;
        if earlier.is_none_or(|earlier| earlier < lease) {
            store.record_promise(lease).await?;
        }
        let forgotten = seeded(Bug::LeaseForgottenOnRestart);
        let kept = earlier.filter(|_| !forgotten).map(|earlier| earlier.max(lease));
        Ok(Self { lease, kept_until: kept.map(|kept| Instant::now() + kept) })
    }

    /// The promise that this member announces to others, in milliseconds.
    pub(crate) fn announced_ms(&self) -> u32 {
        u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX)
    }

    /// Until when this member votes for no member, itself included.
    pub(crate) fn kept_until(&self) -> Option<Instant> {
        self.kept_until
    }

    /// How long it still votes for no member.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = self.kept_until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }
}

/// Lets this member be elected once an earlier process's promise has expired.
pub(crate) async fn outlast(running: Arc<Running>) {
    let Some(until) = running.promise.kept_until else { return };
    tokio::time::sleep_until(until.into()).await;
    running.raft.runtime_config().elect(true);
    // The earlier one may have been longer.
    if let Err(error) = running.store.record_promise(running.promise.lease).await {
        tracing::warn!(%error, "cannot record the shorter promise; the next start waits for the longer one");
    }
}

/// When this member, as a leader, may read without a quorum.
pub(crate) struct ReadLease {
    age_max: Duration,
    suspension_max: Duration,
    /// How long the machine had been suspended before a round of the quorum that succeeded.
    confirmed: Mutex<Option<Duration>>,
    suspended: fn() -> Duration,
}

impl ReadLease {
    pub(crate) fn new(lease: Duration) -> Self {
        Self {
            // Followers count all of the lease. The rest is for clocks that are wrong by up to 7 % each, and for
            // `suspension_max`.
            age_max: lease * 4 / 5,
            // The two clocks are never read at the same moment, so a smaller difference is no suspension.
            suspension_max: lease / 20,
            confirmed: Mutex::new(None),
            suspended,
        }
    }

    /// Starts the confirmation of reads requested before now.
    pub(crate) fn begin(&self, running: &Running) -> Round {
        let suspended = (self.suspended)();
        let confirmed_at = *self.confirmed.lock();
        let awake = confirmed_at
            .is_some_and(|confirmed_at| confirmed_at.abs_diff(suspended) <= self.suspension_max);
        let leased_in = awake.then(|| self.term(running)).flatten();
        Round { suspended, leased_in, age_max: self.age_max }
    }

    /// The term in which a quorum has promised this member enough.
    fn term(&self, running: &Running) -> Option<u64> {
        let since = Instant::now().checked_sub(self.age_max)?;
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let (me, term) = (running.context.me, metrics.current_term);
        let promise_ms = running.promise.announced_ms();
        let followers = &running.context.followers;
        let holds = |id: &u64| *id == me || followers.promised(*id, term, promise_ms, since);
        let configs = metrics.membership_config.membership().get_joint_config();
        let quorum = |voters: &BTreeSet<u64>| {
            2 * voters.iter().filter(|id| holds(id)).count() > voters.len()
        };
        (metrics.state.is_leader() && configs.iter().all(quorum)).then_some(term)
    }

    /// A round has succeeded.
    pub(crate) fn confirm(&self, round: &Round) {
        if round.leased_in.is_none() {
            *self.confirmed.lock() = Some(round.suspended);
        }
    }
}

/// How some reads are confirmed.
pub(crate) struct Round {
    suspended: Duration,
    /// The term in which this member leads by its lease, if it does.
    leased_in: Option<u64>,
    age_max: Duration,
}

impl Round {
    /// Confirms by the lease, or by a future answer of a quorum.
    pub(crate) fn option(&self) -> LinearizerOption {
        match self.leased_in {
            Some(_) => LinearizerOption::new(Some(self.age_max), true),
            None => ReadPolicy::ReadIndex.into(),
        }
    }

    /// Whether consensus's answer for this term is confirmed.
    pub(crate) fn covers(&self, term: u64) -> bool {
        self.leased_in.is_none_or(|leased_in| leased_in == term)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use openraft::impls::leader_id_std::LeaderId;
    use openraft::raft::VoteRequest;
    use openraft::vote::{RaftLeaderId, RaftVote};
    use rollout_proto::v1::PeerMessage;
    use rollout_proto::v1::peer_server::Peer;
    use tonic::Request;

    use super::*;
    use crate::codec::{decode_vote_response, encode_vote_request};
    use crate::node::{Node, PeerService};
    use crate::test_member::{member, until};
    use crate::types::{Types, Vote, log_id};

    /// A cluster of the members with these names, and which of them leads.
    async fn cluster(dir: &std::path::Path, names: &[&str]) -> (Vec<Node>, usize) {
        let (mut nodes, mut records) = (Vec::new(), Vec::new());
        for name in names {
            let (node, record) = member(dir, name).await;
            nodes.push(node);
            records.push(record);
        }
        nodes[0].bootstrap(records).await.expect("a cluster");
        until("one leads", || nodes.iter().any(Node::lease_valid)).await;
        let leads = nodes.iter().position(Node::lease_valid).expect("one");
        nodes[leads].barrier().await.expect("it leads");
        (nodes, leads)
    }

    /// Makes the leader read under its lease.
    async fn read_by_lease(leader: &Node) -> Arc<Running> {
        let running = leader.running().expect("a member");
        leader.read_index().await.expect("it leads");
        assert!(running.read_lease.begin(&running).leased_in.is_some(), "all have promised");
        running
    }

    /// Whether `voter` grants its vote, or its pre-vote, to another member that asks for it.
    async fn asked(
        voter: &Node,
        of: u64,
        before: bool,
        transfer: bool,
    ) -> Result<bool, tonic::Status> {
        let running = voter.running().expect("a member");
        let term = running.raft.metrics().borrow_watched().current_term + 1;
        let vote = Vote::from_leader_id(LeaderId::new(term, of), false);
        let mut request = VoteRequest::<Types>::new(vote, Some(log_id(term, 1 << 40)));
        request.leadership_transfer = transfer;
        let message = PeerMessage {
            cluster_id: running.context.cluster_text.clone(),
            from: of,
            to: running.context.me,
            payload: encode_vote_request(&request).into(),
            ..PeerMessage::default()
        };
        let service = PeerService::new(voter.clone());
        let answer = match before {
            true => service.pre_vote(Request::new(message)).await?,
            false => service.vote(Request::new(message)).await?,
        };
        let answer = decode_vote_response(answer.into_inner().payload).expect("an answer");
        Ok(answer.vote_granted)
    }

    /// Opens a stopped member again, and waits until consensus reports the term and the members that it found on disk. Before
    /// that, a request would have too old a term and an unknown sender. No port serves the member, so no leader reaches it.
    async fn reopened(config: crate::RaftConfig) -> Node {
        let node = Node::open(config).await.expect("opens");
        let running = node.running().expect("a member");
        let metrics = running.raft.metrics();
        until("it has its term", || metrics.borrow_watched().current_term > 0).await;
        node
    }

    /// Nothing here depends on the speed of the machine: steps that must happen within a promise have a minute.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_member_that_was_restarted_votes_for_one_lease_only_where_its_leader_hands_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let (nodes, leads) = cluster(dir.path(), &["a", "b", "c"]).await;
        let (follows, other) = ((leads + 1) % 3, (leads + 2) % 3);
        until("it has heard the leader", || nodes[follows].heard_leader().is_some()).await;
        let of = nodes[other].identity().expect("a member").member_id;
        let config = nodes[follows].config().clone();
        let lease = config.lease();
        for node in &nodes {
            node.stop().await; // None of them elects the one that is asked.
        }
        // Its own promise is shorter; the one on disk is kept.
        let shorter = crate::RaftConfig { election_max_ms: 1001, ..config.clone() };
        let before = Instant::now();
        let again = reopened(shorter).await;
        let kept = again.running().expect("a member").promise.kept_until().expect("a promise");
        assert!(kept >= before + lease, "{:?} of {lease:?}", kept.duration_since(before));
        tokio::time::sleep_until(kept.into()).await;
        assert!(asked(&again, of, true, false).await.expect("an answer"), "the promise is over");
        again.stop().await;

        let again = reopened(crate::RaftConfig { election_max_ms: 60_000, ..config }).await;
        for before in [true, false] {
            let refused = asked(&again, of, before, false).await;
            assert!(refused.is_err(), "it votes though it may have promised not to: {refused:?}");
        }
        assert!(asked(&again, of, false, true).await.expect("an answer"), "a handover");
        let left = again.running().expect("a member").promise.left();
        assert!(left.is_some(), "this took longer than a minute");
        again.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_member_that_was_restarted_elects_itself_after_one_lease() {
        let dir = tempfile::tempdir().expect("a directory");
        let (nodes, _) = cluster(dir.path(), &["a"]).await;
        let config = nodes[0].config().clone();
        nodes[0].stop().await;
        let since = Instant::now();
        let again = Node::open(config.clone()).await.expect("opens");
        let early = AtomicBool::new(false);
        until("it leads", || {
            let leads = again.lease_valid();
            if leads && since.elapsed() < config.lease() {
                early.store(true, Ordering::Relaxed);
            }
            leads
        })
        .await;
        assert!(!early.into_inner(), "another one may still have led");
        again.barrier().await.expect("it leads");
        again.stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_leader_reads_by_its_lease_for_less_time_than_its_followers_promised() {
        let lease = Duration::from_secs(2);
        let (slow, fast) = (93, 107);
        let read_lease = ReadLease::new(lease);
        let longest = read_lease.age_max + read_lease.suspension_max;
        assert!(longest * 100 / slow < lease * 100 / fast, "clocks differ by 7 % each");

        let dir = tempfile::tempdir().expect("a directory");
        let (nodes, leads) = cluster(dir.path(), &["a", "b", "c"]).await;
        let running = read_by_lease(&nodes[leads]).await;
        // With this member, one of the two is a quorum.
        let acked = || {
            let followers = running.context.followers.0.read();
            followers.values().filter_map(|known| Some(known.heartbeat?.1)).max().expect("it led")
        };
        for follows in [(leads + 1) % 3, (leads + 2) % 3] {
            nodes[follows].stop().await;
        }
        let (mut by_lease, mut refused) = (0, 0);
        loop {
            let began = Instant::now();
            let read = tokio::time::timeout(Duration::from_millis(20), nodes[leads].read_index());
            let read = read.await.is_ok_and(|read| read.is_ok());
            let age = began.saturating_duration_since(acked());
            assert!(!read || age < running.read_lease.age_max, "read {age:?} after an answer");
            if age > lease {
                break;
            }
            by_lease += usize::from(read);
            refused += usize::from(!read && age > running.read_lease.age_max);
        }
        assert!(by_lease > 0, "no quorum was asked");
        assert!(refused > 0, "the lease of writes is longer");
        nodes[leads].stop().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn time_in_which_the_machine_was_suspended_is_not_taken_for_a_lease() {
        static SUSPENDED_MS: AtomicU64 = AtomicU64::new(7);
        let suspended = || Duration::from_millis(SUSPENDED_MS.load(Ordering::Relaxed));
        let dir = tempfile::tempdir().expect("a directory");
        let (nodes, leads) = cluster(dir.path(), &["a", "b", "c"]).await;
        let running = nodes[leads].running().expect("a member");
        let read_lease = ReadLease { suspended, ..ReadLease::new(running.config.lease()) };
        let first = read_lease.begin(&running);
        assert!(first.leased_in.is_none(), "no member has confirmed it");
        nodes[leads].read_index().await.expect("it leads");
        read_lease.confirm(&first);
        assert!(read_lease.begin(&running).leased_in.is_some());
        // Two clocks are never read at the same moment.
        SUSPENDED_MS.fetch_add(2, Ordering::Relaxed);
        assert!(read_lease.begin(&running).leased_in.is_some());
        SUSPENDED_MS.fetch_add(60_000, Ordering::Relaxed);
        let awake = read_lease.begin(&running);
        assert!(awake.leased_in.is_none(), "who leads since?");
        // A round that began before confirms nothing.
        read_lease.confirm(&first);
        assert!(read_lease.begin(&running).leased_in.is_none());
        read_lease.confirm(&awake);
        assert!(read_lease.begin(&running).leased_in.is_some());
        for node in nodes {
            node.stop().await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_leader_that_hands_over_reads_nothing_by_its_lease() {
        let dir = tempfile::tempdir().expect("a directory");
        let (nodes, leads) = cluster(dir.path(), &["a", "b", "c"]).await;
        let running = read_by_lease(&nodes[leads]).await;
        // The target is stopped and cannot take over, and no other member takes over within a lease.
        let to = nodes[(leads + 1) % 3].identity().expect("a member").member_id;
        nodes[(leads + 1) % 3].stop().await;
        nodes[leads].read_index().await.expect("it leads");
        running.raft.trigger().transfer_leader(to).await.expect("asked");
        assert!(running.read_lease.begin(&running).leased_in.is_some(), "the promises are kept");
        let read = nodes[leads].read_index().await;
        assert!(read.is_err(), "{read:?} though another one may lead");
        nodes[leads].stop().await;
    }
}

//! Which member to ask for the leader, and when.
//!
//! *Invariant:* a search asks one member at a time, and goes on to the next one if that member does not lead or stays
//! silent. It starts with members to which it has a connection. So when thousands of workers lose their leader at the
//! same moment, each costs the cluster one or two questions, and at most one TLS handshake.
//!
//! Absent: which answers prove that a member leads (`probe`).

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use rand::Rng;
use rand::seq::IndexedRandom;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::leader_calls::Call;
use super::probe::ProbeAnswer;
use super::retry_backoff::{RetryBackoff, WAIT_MAX};
use super::{Client, ClientError, MemberRef};
use crate::endpoint::Endpoint;

/// How long one member has to answer before the next one is asked, by a client that is one of few.
const ANSWER_WAIT: Duration = Duration::from_millis(50);
/// The shortest time until each member is asked again while the leader is silent; [`HEDGE_CALM`] while the leader says
/// that it leads. Both are longer for one of thousands of clients.
const HEDGE_AGAIN: Duration = Duration::from_millis(50);
const HEDGE_CALM: Duration = Duration::from_millis(500);
/// The shortest pause before a client that is one of few opens one more standby connection.
const STANDBY_PAUSE: Duration = Duration::from_secs(1);
/// The same pause for one of thousands of clients, as a multiple of its longest wait.
const STANDBY_WAITS: u32 = 4;

/// One search for the leader. It proceeds in rounds, each of which asks every member once.
struct Search {
    /// The member that another one named as the leader.
    named_leader: Option<String>,
    /// Members asked in this round.
    asked_members: HashSet<Endpoint>,
    /// Members that have not answered yet, in this round or before.
    in_flight: HashSet<Endpoint>,
    /// When to ask the next member, whether the last one has answered or not.
    next_at: Instant,
    /// All were asked: the next round begins at that time.
    pausing: bool,
}

impl Search {
    fn new() -> Self {
        Search {
            named_leader: None,
            asked_members: HashSet::new(),
            in_flight: HashSet::new(),
            next_at: Instant::now(),
            pausing: false,
        }
    }

    fn learn(&mut self, endpoint: &Endpoint, answer: ProbeAnswer) {
        self.in_flight.remove(endpoint);
        match answer {
            ProbeAnswer::Leads => {}
            ProbeAnswer::Names(leader) => self.named_leader = Some(leader),
            ProbeAnswer::Nothing => {}
        }
        if !self.pausing {
            self.next_at = Instant::now();
        }
    }

    fn end_round(&mut self, pause: Duration) {
        self.asked_members.clear();
        self.named_leader = None;
        self.pausing = true;
        self.next_at = Instant::now() + pause;
    }
}

impl Client {
    /// The known leader, or the first member that proves to lead.
    pub(super) async fn find_leader(&self, call: &mut Call) -> Result<Endpoint, ClientError> {
        if let Some(leader) = self.known_leader() {
            return Ok(leader);
        }
        // One call searches, the others wait for its result. If it gives up, the next one searches.
        let Ok(_turn) = timeout_at(call.deadline, self.inner.search_turn.lock()).await else {
            return Err(call.give_up(self));
        };
        // While no member leads, calls come and go: each continues at the pace of those before it.
        call.backoff
            .set_start(*self.inner.leaderless_since.lock().get_or_insert_with(Instant::now));
        let mut search = Search::new();
        let mut answers = FuturesUnordered::new();
        self.inner.last_probes.lock().clear();
        loop {
            if let Some(leader) = self.known_leader() {
                return Ok(leader);
            }
            if Instant::now() >= search.next_at {
                search.pausing = false;
                match self.next_to_ask(&search) {
                    Some(endpoint) => {
                        search.asked_members.insert(endpoint.clone());
                        search.in_flight.insert(endpoint.clone());
                        search.next_at = Instant::now() + self.answer_wait();
                        answers.push(async move { (endpoint.clone(), self.probe(endpoint).await) });
                    }
                    None => search.end_round(call.backoff.next_wait() + self.random_spread()),
                }
                continue;
            }
            tokio::select! {
                Some((endpoint, answer)) = answers.next() => search.learn(&endpoint, answer),
                () = sleep_until(search.next_at) => {}
                () = sleep_until(call.deadline) => return Err(call.give_up(self)),
            }
            // Once a leader is known, earlier answers of other members do not count, even fatal ones.
            if self.known_leader().is_some() {
                continue;
            }
            match self.hopeless(call.waited()) {
                // An attempt may have been applied before all members began to refuse.
                Some(_) if call.may_have_applied => return Err(call.give_up(self)),
                Some(error) => return Err(error),
                None => self.report_wait(call),
            }
        }
    }

    /// The next member to ask in this round. In this order: the one that another member named; one with an open
    /// connection, except the last leader, which may have fallen silent; the last leader; any other.
    fn next_to_ask(&self, search: &Search) -> Option<Endpoint> {
        let mut left = self.candidates();
        left.retain(|each| {
            !search.asked_members.contains(each) && !search.in_flight.contains(each)
        });
        let named =
            left.iter().find(|each| each.name.is_some() && each.name == search.named_leader);
        let last_leader = self.inner.cluster_view.lock().last_leader.clone();
        let is_last = |each: &&Endpoint| Some(*each) == last_leader.as_ref();
        let connected = left.iter().filter(|each| !is_last(each) && self.is_connected_to(each));
        let connected = connected.collect::<Vec<_>>().choose(&mut rand::rng()).copied();
        let last_leader = left.iter().find(is_last);
        let any = || left.choose(&mut rand::rng());
        named.or(connected).or(last_leader).or_else(any).cloned()
    }

    /// How long one member has to answer before the next one is asked. A member with thousands of callers answers
    /// late.
    fn answer_wait(&self) -> Duration {
        ANSWER_WAIT + self.extra_wait() / 2 + self.random_spread() / 2
    }

    /// By how much this client's longest wait exceeds that of one of few.
    fn extra_wait(&self) -> Duration {
        self.longest_wait().saturating_sub(WAIT_MAX)
    }

    /// A random wait that spreads the actions of thousands of clients; zero for one of few.
    fn random_spread(&self) -> Duration {
        self.extra_wait().mul_f64(rand::rng().random_range(0.0..=1.0))
    }

    pub(super) fn known_leader(&self) -> Option<Endpoint> {
        self.inner.cluster_view.lock().leader.clone()
    }

    /// Asks all members until one other than `current` leads.
    pub(super) async fn find_other_leader(&self, current: &MemberRef) -> Endpoint {
        let other = || self.known_leader().filter(|known| MemberRef::from(known) != *current);
        // One call asks, the others wait for its result.
        let _turn = self.inner.hedge_turn.lock().await;
        let current_leads = AtomicBool::new(false);
        let mut backoff = RetryBackoff::new(self.longest_wait());
        let mut asking: FuturesUnordered<_> = self
            .candidates()
            .into_iter()
            .map(|endpoint| {
                let known =
                    MemberRef::from(&endpoint) == *current || self.is_connected_to(&endpoint);
                let wait = if known { self.random_spread() } else { self.answer_wait() };
                self.ask_after(endpoint, current, &current_leads, wait)
            })
            .collect();
        loop {
            if let Some(leader) = other() {
                return leader;
            }
            match asking.next().await {
                Some(endpoint) => {
                    let wait = match current_leads.load(Ordering::Relaxed) {
                        true => HEDGE_CALM.max(self.longest_wait()),
                        false => backoff.next_wait().max(HEDGE_AGAIN) + self.random_spread(),
                    };
                    asking.push(self.ask_after(endpoint, current, &current_leads, wait));
                }
                None => sleep(HEDGE_CALM).await,
            }
        }
    }

    async fn ask_after(
        &self,
        endpoint: Endpoint,
        current: &MemberRef,
        current_leads: &AtomicBool,
        wait: Duration,
    ) -> Endpoint {
        sleep(wait).await;
        let answer = self.probe(endpoint.clone()).await;
        if MemberRef::from(&endpoint) == *current {
            current_leads.store(matches!(answer, ProbeAnswer::Leads), Ordering::Relaxed);
        }
        endpoint
    }

    /// Keeps a connection open to every member, so that this client reaches the next leader without a handshake. Opens
    /// one connection at a time, over seconds, or over about a minute if [`Self::wait_at_most`] says that thousands do
    /// the same. For long-lived clients; ends when it is dropped.
    pub async fn keep_standby_connections(&self) -> Infallible {
        loop {
            let pause = STANDBY_PAUSE + STANDBY_WAITS * self.extra_wait();
            let part = rand::rng().random_range(1.0..=2.0);
            sleep(pause.mul_f64(part)).await;
            let missing = self.candidates().into_iter().find(|each| !self.is_connected_to(each));
            if let Some(endpoint) = missing {
                self.probe(endpoint).await;
            }
        }
    }
}

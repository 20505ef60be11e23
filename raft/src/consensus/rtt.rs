//! Owns: the round trips to the other members, as this member measures them.
//!
//! Invariant: a sample uses a connection that was already open, so it is one round trip plus the other member's time
//! to answer. Measuring also keeps open the connections that votes and heartbeats use: an election does not wait for
//! new connections, which take three round trips.
//! Absent: conclusions. `rolloutctl doctor` draws them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use rollout_proto::v1::{HelloRequest, HelloResponse};
use tokio::time::MissedTickBehavior;

use crate::consensus::running::Running;
use crate::member::MemberRecord;
use crate::peer::Lane;

/// How often each other member is asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Samples kept of each: about a minute.
const SAMPLES_MAX: usize = 64;

/// Round trips to one other member, of the last minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundTrips {
    pub id: u64,
    pub name: String,
    /// How many were measured.
    pub samples: u32,
    /// The shortest.
    pub min: Duration,
    /// The median.
    pub p50: Duration,
    /// Nine of ten are not longer.
    pub p90: Duration,
    /// The longest.
    pub max: Duration,
}

/// The samples of each other member.
#[derive(Default)]
pub(crate) struct Samples(Mutex<BTreeMap<u64, VecDeque<Duration>>>);

impl Samples {
    /// Makes all readers wait until the guard is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.0.lock()
    }

    fn add(&self, id: u64, rtt: Duration) {
        let mut all = self.0.lock();
        let samples = all.entry(id).or_default();
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(rtt);
    }

    /// A member did not answer for this long: drops its oldest samples, one for each time that it should have been
    /// asked, because they do not show where it is now.
    fn age(&self, id: u64, silent: Duration) {
        if let Some(samples) = self.0.lock().get_mut(&id) {
            let missed = (silent.as_millis() / ASK_EVERY.as_millis()).max(1);
            samples.drain(..samples.len().min(missed as usize));
        }
    }

    /// Forgets nodes that are no longer members.
    fn keep(&self, members: &[MemberRecord]) {
        self.0.lock().retain(|id, _| members.iter().any(|member| member.id == *id));
    }

    /// The round trips of each member that answered.
    pub(crate) fn of(&self, name: impl Fn(u64) -> String) -> Vec<RoundTrips> {
        let all = self.0.lock();
        all.iter().filter_map(|(id, samples)| summary(*id, name(*id), samples)).collect()
    }
}

fn summary(id: u64, name: String, samples: &VecDeque<Duration>) -> Option<RoundTrips> {
    let mut sorted: Vec<Duration> = samples.iter().copied().collect();
    sorted.sort_unstable();
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let at = |percent: usize| sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)];
    let samples = u32::try_from(sorted.len()).unwrap_or(u32::MAX);
    Some(RoundTrips { id, name, samples, min, p50: at(50), p90: at(90), max })
}

/// Measures as long as the member runs. Each member is asked separately: one that does not answer takes seconds, and
/// would stretch the last minute of all others to several minutes.
pub(crate) async fn watch(running: Arc<Running>) {
    let mut due = tokio::time::interval_at(tokio::time::Instant::now() + ASK_EVERY, ASK_EVERY);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut under_way, mut pinging) = (FuturesUnordered::new(), BTreeSet::new());
    loop {
        tokio::select! {
            _ = due.tick() => {
                let members = running.peers_except(running.context.me);
                running.round_trips.keep(&members);
                running.reachability.keep(&members);
                for member in members {
                    if pinging.insert(member.id) {
                        under_way.push(measure(&running, member));
                    }
                }
            }
            Some(id) = under_way.next() => {
                pinging.remove(&id);
            }
        }
    }
}

/// Asks one member, within the limits for a connection and for an answer. Returns its id.
async fn measure(running: &Running, member: MemberRecord) -> u64 {
    let (begun, member) = (Instant::now(), &member);
    let limit = 2 * running.context.dialer.connect_limit();
    let (votes, heartbeats) = tokio::join!(
        tokio::time::timeout(limit, hello(running, member, Lane::Log)),
        tokio::time::timeout(limit, async {
            // The first call opens a connection if there is none.
            hello(running, member, Lane::Heartbeat).await?;
            let sent_at = Instant::now();
            let answer = hello(running, member, Lane::Heartbeat).await?;
            Some((sent_at.elapsed(), answer))
        }),
    );
    drop(votes);
    match heartbeats {
        Ok(Some((rtt, answer))) => {
            running.round_trips.add(member.id, rtt);
            let its_own =
                answer.member_id == member.id && answer.cluster_id == running.context.cluster_text;
            match its_own {
                true => running.reachability.answered(member.id, answer.started_ms, begun),
                false => running.reachability.silent(member.id, begun),
            }
        }
        _ => {
            running.round_trips.age(member.id, begun.elapsed());
            running.reachability.silent(member.id, begun);
        }
    }
    member.id
}

async fn hello(running: &Running, member: &MemberRecord, lane: Lane) -> Option<HelloResponse> {
    let mut client = running.context.dialer.client(member, lane).ok()?;
    Some(client.hello(HelloRequest::default()).await.ok()?.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_of_the_last_samples_and_outliers_show_in_the_longest_alone() {
        let samples = Samples::default();
        assert_eq!(samples.of(|_| String::new()), []);
        let ms = Duration::from_millis;
        samples.add(2, ms(9_000));
        for sample in 0..SAMPLES_MAX as u64 {
            samples.add(2, ms(if sample == 5 { 300 } else { 40 + sample % 4 }));
        }
        let found = samples.of(|id| format!("c{id}"));
        let [RoundTrips { id: 2, name, samples: 64, min, p50, p90, max }] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(name, "c2");
        assert_eq!((*min, *p50, *p90, *max), (ms(40), ms(42), ms(43), ms(300)));
        samples.age(2, ms(20));
        assert_eq!(samples.of(|_| String::new())[0].samples, 63);
        samples.age(2, ms(6_100));
        assert_eq!(samples.of(|_| String::new())[0].samples, 57, "it was not asked meanwhile");
        samples.keep(&[]);
        assert_eq!(samples.of(|_| String::new()), []);
    }
}

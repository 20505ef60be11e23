//! One simulated worker: its own certificate, connections, session and stream, and the rules of a real one.
//!
//! Invariant: it registers with what it holds, starts rows only while an answered heartbeat allows it, leaves a silent
//! leader once another one leads, and rejects every epoch below the highest seen. Its rows continue while it is not
//! connected.
//! Absent: a disk; a worker of the generator never restarts.

mod session;
mod stream;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::pending;
use rollout_proto::{Client, ClientConfig, MemberRef, Security, TlsFiles};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::sleep_until;

use super::plan::Plan;
use super::row_record::Shared;
use super::slot::Slot;

/// The backoff of reconnections, as a real worker's: growing, and drawn from zero to the present step.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// The heartbeat interval of a small fleet, and the factor for a larger one's reconnect time. These and the next
/// constant are the rules of `worker/src/session.rs`; other values here would measure a different worker.
const HEARTBEAT_OF_FEW: Duration = Duration::from_millis(500);
const SPREAD_FACTOR: u32 = 3;
const SPREAD_MAX: Duration = Duration::from_secs(6);
/// A stream that breaks sooner is not reopened at once.
const STEADY_AFTER: Duration = SPREAD_MAX;
const GONE_AFTER: Duration = Duration::from_millis(10);
const NEVER: Duration = Duration::from_secs(3600);

/// The parent's orders to all workers.
#[derive(Debug, Clone, Default)]
pub(super) struct Orders {
    /// How many of a thousand workers are cut off now.
    pub(super) lost_per_mille: u32,
    /// Since when those that were cut off may come back.
    pub(super) returned: Option<Instant>,
    /// Report finished rows, request no more, deregister.
    pub(super) stop: bool,
}

/// Why a stream ended.
enum End {
    /// Everything is reported.
    Settled,
    /// The parent ordered something else.
    Ordered,
    /// It registers again.
    Reregister,
    /// The connection is gone.
    Broken(String),
    /// The leader refused it, is silent, or no longer leads.
    Left(String),
}

/// How long a fleet with this heartbeat interval takes to reconnect when all lose their leader at once.
fn reconnect_spread(heartbeat: Duration) -> Duration {
    (heartbeat.saturating_sub(HEARTBEAT_OF_FEW) * SPREAD_FACTOR).min(SPREAD_MAX)
}

pub(super) struct Worker {
    number: u32,
    plan: Rc<Plan>,
    record: Shared,
    orders: watch::Receiver<Orders>,
    gate: Arc<Semaphore>,
    /// Held until the first answer on the first stream.
    permit: Option<OwnedSemaphorePermit>,
    client: Option<Client>,
    instance: u64,
    session: u64,
    registered: bool,
    heartbeat: Duration,
    self_fence: Duration,
    fence: Option<Instant>,
    epoch: u64,
    slots: Vec<Slot>,
    backoff: Duration,
    /// The present connection followed a broken one without a pause.
    at_once: bool,
    /// Whether a heartbeat was answered on the present stream.
    served: bool,
    /// When the last served stream ended; none before the first, and while one is served.
    offline_since: Option<Instant>,
    lost: bool,
    /// Since when it may work again; cleared once it works.
    returned: Option<Instant>,
}

/// The name of a worker.
pub(super) fn name(number: u32) -> String {
    format!("bench-w{number}")
}

/// The files of its certificate.
pub(super) fn tls_files(tls: &std::path::Path, number: u32) -> TlsFiles {
    TlsFiles {
        ca: tls.join("ca.pem"),
        cert: tls.join(format!("{}.pem", name(number))),
        key: tls.join("worker.key"),
    }
}

impl Worker {
    pub(super) fn new(
        number: u32,
        plan: Rc<Plan>,
        record: Shared,
        orders: watch::Receiver<Orders>,
        gate: Arc<Semaphore>,
    ) -> Self {
        let instance = rand::random();
        let slots = (0..plan.shape.slots).map(|slot| Slot::new(&plan, (number, slot), instance));
        Self {
            slots: slots.collect(),
            number,
            plan,
            record,
            orders,
            gate,
            permit: None,
            client: None,
            instance,
            session: 0,
            registered: false,
            heartbeat: Duration::from_millis(500),
            self_fence: Duration::from_secs(4),
            fence: None,
            epoch: 0,
            backoff: BACKOFF.0,
            at_once: false,
            served: false,
            offline_since: None,
            lost: false,
            returned: None,
        }
    }

    /// Works until the parent stops it and everything is reported.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        loop {
            let orders = self.orders.borrow_and_update().clone();
            if self.is_lost(&orders) {
                if orders.stop {
                    return Ok(());
                }
                self.be_lost().await;
                continue;
            }
            if self.client.is_none() {
                if self.offline_since.is_none() && self.permit.is_none() {
                    self.permit = Some(self.gate.clone().acquire_owned().await?);
                }
                let files = tls_files(&self.plan.tls, self.number);
                let endpoints = self.plan.endpoints.clone();
                self.client =
                    Some(Client::new(ClientConfig::new(endpoints, Security::Mtls(files)))?);
            }
            let Some(client) = self.client.clone() else { continue };
            if !self.registered && !Box::pin(self.register(&client)).await? {
                continue;
            }
            let (leader, channel) = match self.meanwhile(client.leader_channel()).await {
                Some(Ok(found)) => found,
                Some(Err(error)) => {
                    tracing::debug!(%error, worker = self.number, "no leader");
                    continue;
                }
                None => continue,
            };
            self.epoch = self.epoch.max(client.coord_epoch());
            let begun = Instant::now();
            let end = tokio::select! {
                end = Box::pin(self.stream(&leader, channel)) => end?,
                never = client.keep_standby_connections() => match never {},
            };
            let served = self.went_offline();
            match end {
                End::Settled => break,
                End::Ordered => {}
                End::Reregister => self.registered = false,
                End::Broken(why) => {
                    let same = client.leader().is_some_and(|now| now == leader);
                    let steady = same && begun.elapsed() >= STEADY_AFTER;
                    self.left(&client, &leader, why, (served, steady)).await;
                }
                End::Left(why) => self.left(&client, &leader, why, (served, false)).await,
            }
        }
        self.deregister().await
    }

    /// Pauses as a worker does before it reconnects: not at all if its stream was `steady` and broke, and for its
    /// share of the fleet's reconnect time if that did not help.
    async fn left(
        &mut self,
        client: &Client,
        leader: &MemberRef,
        why: String,
        (served, steady): (bool, bool),
    ) {
        tracing::debug!(why, worker = self.number, "left a leader");
        let failed = std::mem::take(&mut self.at_once) && !served;
        self.at_once = served && steady;
        if self.at_once {
            client.leader_failed(&leader.addr);
            self.meanwhile(tokio::time::sleep(GONE_AFTER)).await;
            return;
        }
        if served || failed {
            let wait = reconnect_spread(self.heartbeat).mul_f64(rand::random());
            self.meanwhile(tokio::time::sleep(wait)).await;
        }
        client.leader_failed(&leader.addr);
        self.rest().await;
    }

    fn is_lost(&self, orders: &Orders) -> bool {
        // Neighbors differ, so that all models and namespaces lose their share.
        let place = ((u64::from(self.number) * 2_654_435_761) >> 8) % 1000;
        place < u64::from(orders.lost_per_mille)
    }

    /// Falls silent: sends and reads nothing, while its rows continue. Its connections close when it comes back: a
    /// real machine would not close them on this machine's processors.
    async fn be_lost(&mut self) {
        self.lost = true;
        self.went_offline();
        while self.is_lost(&self.orders.borrow().clone()) && !self.orders.borrow().stop {
            self.meanwhile(pending::<()>()).await;
        }
        if let Some(client) = &self.client {
            client.disconnect();
            if let Some(leader) = client.leader() {
                client.leader_failed(&leader.addr);
            }
        }
        self.returned = self.orders.borrow().returned;
        // As if it were in the pause between two tries.
        let wait = (BACKOFF.1 + reconnect_spread(self.heartbeat)).mul_f64(rand::random());
        self.meanwhile(tokio::time::sleep(wait)).await;
        self.lost = false;
    }

    /// Whether a heartbeat had been answered on its stream.
    fn went_offline(&mut self) -> bool {
        self.slots.iter_mut().for_each(Slot::stream_broke);
        let mut record = self.record.borrow_mut();
        let served = std::mem::take(&mut self.served);
        if served {
            record.connected -= 1;
            record.counts.streams_ended += 1;
            self.offline_since = Some(Instant::now());
        }
        served
    }

    async fn rest(&mut self) {
        let longest = BACKOFF.1 + reconnect_spread(self.heartbeat);
        let wait = self.backoff.min(longest).mul_f64(rand::random());
        self.backoff = (self.backoff * 2).min(longest);
        self.meanwhile(tokio::time::sleep(wait)).await;
    }

    /// Waits for `work` while rows continue; `None` if the parent orders something else.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let wake = self.next_wake().unwrap_or_else(|| Instant::now() + NEVER);
            tokio::select! {
                biased;
                Ok(()) = self.orders.changed() => return None,
                done = &mut work => return Some(done),
                () = sleep_until(wake.into()) => {}
            }
            self.advance(Instant::now());
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        self.slots.iter().filter_map(|slot| slot.next_end()).min()
    }

    /// Ends and starts rows; true if a slot has run out of waiting rows.
    fn advance(&mut self, now: Instant) -> bool {
        let may_start = self.fence.is_some_and(|until| now < until);
        let mut record = self.record.borrow_mut();
        let mut dry = false;
        for slot in &mut self.slots {
            dry |= slot.advance(now, may_start, &self.plan, &mut record);
            if self.lost {
                slot.absent(&mut record);
            }
        }
        dry
    }

    /// A lost worker works again once a slot runs a row; one without runs, once it is connected.
    fn note_return(&mut self, now: Instant) {
        let busy = || self.slots.iter().filter(|slot| slot.is_busy());
        let works = self.served && (busy().any(Slot::runs) || busy().next().is_none());
        if let Some(since) = self.returned.take_if(|_| works) {
            let us = now.saturating_duration_since(since).as_micros() as u64;
            self.record.borrow_mut().spreads.work_again.record_us(us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_fleet_comes_back_over_seconds_as_one_of_real_workers_does() {
        let spread = |ms| reconnect_spread(Duration::from_millis(ms)).as_millis();
        assert_eq!([50, 500, 1000, 2000, 10_000].map(spread), [0, 0, 1500, 4500, 6000]);
    }
}

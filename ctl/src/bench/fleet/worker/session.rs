//! Owns: the session of one simulated worker: registering, and leaving at the end.
//!
//! Invariant: it registers with what it holds, as a real worker does.
//! Absent: the stream.

use std::time::{Duration, Instant};

use rollout_proto::{Client, services, v1};

use super::{BACKOFF, Worker, name, reconnect_spread};
use crate::bench::fleet::slot::{Slot, to_wire};

impl Worker {
    /// Registers; false if the caller should retry.
    pub(super) async fn register(&mut self, client: &Client) -> anyhow::Result<bool> {
        let request = self.registration(client);
        let sent = Instant::now();
        let call = client.with_leader("register", |channel| {
            let request = request.clone();
            async move { services::worker(channel).register(request).await }
        });
        let answer = match self.meanwhile(call).await {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => {
                tracing::debug!(%error, worker = self.number, "cannot register yet");
                self.rest().await;
                return Ok(false);
            }
            None => return Ok(false),
        };
        let shared = self.record.clone();
        let mut record = shared.borrow_mut();
        record.counts.registrations += 1;
        record.spreads.register.record_us(sent.elapsed().as_micros() as u64);
        for slot in &mut self.slots {
            record.counts.rows_dropped += slot.take_away(&answer.dropped);
        }
        self.session = answer.session;
        self.registered = true;
        self.self_fence = Duration::from_millis(answer.self_fence_ms.max(1).into());
        self.set_heartbeat(answer.heartbeat_ms);
        self.fence = Some(sent + self.self_fence);
        Ok(true)
    }

    fn registration(&self, client: &Client) -> v1::RegisterRequest {
        let labels = self.plan.shape.label.iter();
        let labels: std::collections::HashMap<_, _> =
            labels.map(|label| (crate::bench::load::LABEL.to_owned(), label.clone())).collect();
        let offer = |(number, slot): (u32, &Slot)| v1::SlotOffer {
            slot: number,
            models: vec![slot.model.clone()],
            tasks: vec!["generate".into()],
            engine: "mock".into(),
            labels: labels.clone(),
            ..v1::SlotOffer::default()
        };
        v1::RegisterRequest {
            namespace: self.plan.shape.worker_namespace(self.number),
            name: name(self.number),
            instance: self.instance,
            resume_session: self.session,
            coord_epoch_seen: client.coord_epoch(),
            cluster_id: client.cluster_id(),
            slots: (0..).zip(&self.slots).map(offer).collect(),
            held: to_wire(self.slots.iter().flat_map(Slot::held).collect()),
            address: "rolloutctl bench".into(),
            ..v1::RegisterRequest::default()
        }
    }

    pub(super) fn set_heartbeat(&mut self, ms: u32) {
        if ms > 0 {
            self.heartbeat =
                Duration::from_millis(ms.clamp(10, 10_000).into()).min(self.self_fence / 2);
            if let Some(client) = &self.client {
                client.wait_at_most(BACKOFF.1 + reconnect_spread(self.heartbeat));
            }
        }
    }

    pub(super) async fn deregister(&mut self) -> anyhow::Result<()> {
        let Some(client) = self.client.take() else { return Ok(()) };
        let _turn = self.gate.clone().acquire_owned().await?;
        let request = v1::DeregisterRequest {
            session: self.session,
            instance: self.instance,
            ..Default::default()
        };
        client
            .with_leader("deregister", |channel| {
                let request = request.clone();
                async move { services::worker(channel).deregister(request).await }
            })
            .await?;
        let mut record = self.record.borrow_mut();
        self.slots.iter().for_each(|slot| slot.absent(&mut record));
        Ok(())
    }
}

//! Owns: the registration with every row that this process still holds.
//!
//! Invariant: the held rows are read from the slots while none of them can be granted more. Rows that the leader
//! dropped are dropped before the next stream.
//! Absent: giving up on transient errors. A refusal that needs an operator is logged each time, and ends the process
//! after `register_refused_ms`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rollout_proto::{ClientError, ErrorCode, services, v1};

use super::{HEARTBEAT, Session, fatal};
use crate::agent_error::AgentError;
use crate::backoff::Backoff;
use crate::lease_table::to_wire;
use crate::leased_rows::NamedRows;
use crate::offer;
use crate::slot::SlotCommand;
use crate::store_probe::probe;

impl Session {
    /// Registers, and retries for as long as it takes.
    pub(super) async fn register(&mut self) -> Result<(), AgentError> {
        let mut backoff = Backoff::of_many(Duration::from_millis(100), Duration::from_secs(5));
        let bears = Duration::from_millis(self.config.timing.register_refused_ms);
        let mut refused_since = None;
        loop {
            match self.try_register().await {
                Ok(()) => return Ok(()),
                Err(Failed::Fatal(error)) => return Err(error),
                Err(Failed::Call(error)) => {
                    if let Some(fatal) = fatal(&error) {
                        return Err(fatal);
                    }
                    if mends_itself(&error) {
                        refused_since = None;
                        tracing::warn!(%error, name = self.config.name, "cannot register yet");
                    } else {
                        let since = *refused_since.get_or_insert_with(Instant::now);
                        let (refused, reason) = (since.elapsed(), error.to_string());
                        let refused_ms = refused.as_millis() as u64;
                        if refused >= bears {
                            return Err(AgentError::Refused { refused_ms, reason });
                        }
                        let ends_in_ms = bears.saturating_sub(refused).as_millis() as u64;
                        let name = &self.config.name;
                        tracing::error!(reason, name, ends_in_ms, "registration is refused");
                    }
                }
            }
            backoff.sleep().await;
        }
    }

    async fn try_register(&mut self) -> Result<(), Failed> {
        let reason = probe(&self.client, &self.stores, &self.config).await;
        self.link.store_reason = reason.map_err(Failed::Call)?;
        if let Some(reason) = &self.link.store_reason {
            tracing::error!(reason, "this worker can take no work");
        }
        let request = self.request();
        let eligible = request.slots.iter().map(|slot| slot.ineligible.is_empty()).collect();
        let sent = Arc::new(Mutex::new(Instant::now()));
        let answer = self
            .client
            .with_leader("register", |channel| {
                let (request, sent) = (request.clone(), sent.clone());
                *sent.lock() = Instant::now();
                async move { services::worker(channel).register(request).await }
            })
            .await
            .map_err(Failed::Call)?;
        tracing::info!(
            session = answer.session,
            resumed = answer.resumed,
            held = request.held.len(),
            dropped = answer.dropped.len(),
            "registered"
        );
        self.set_session(answer.session);
        self.state.coord_epoch = self.client.coord_epoch();
        self.state.cluster_id = self.client.cluster_id();
        self.save().await.map_err(Failed::Fatal)?;
        self.stores.set_cluster(&answer.store_url);
        let configured = self.config.timing.self_fence_ms;
        self.link.self_fence = Duration::from_millis(match answer.self_fence_ms {
            0 => configured,
            ms => configured.min(ms.into()),
        });
        self.link.heartbeat = HEARTBEAT;
        self.set_heartbeat(answer.heartbeat_ms);
        self.link.eligible = eligible;
        self.link.registered = true;
        if answer.draining {
            self.asked_to_go(answer.drain_deadline_ms, "a drain that goes on".to_owned());
        }
        let registration = self.fence.registered();
        self.fence.answered(*sent.lock(), self.link.self_fence);
        let dropped = Arc::new(NamedRows::new(answer.dropped));
        for slot in &self.slots {
            // A slot that has ended holds nothing.
            let command = SlotCommand::Registered { registration, dropped: dropped.clone() };
            let _ = slot.commands.send(command).await;
        }
        Ok(())
    }

    /// Resolves with whether the store, which was unusable, is usable now.
    pub(super) fn store_usable(&self) -> BoxFuture<'static, bool> {
        let (client, stores) = (self.client.clone(), self.stores.clone());
        let config = self.config.clone();
        async move { matches!(probe(&client, &stores, &config).await, Ok(None)) }.boxed()
    }

    fn request(&self) -> v1::RegisterRequest {
        let config = &self.config;
        let slots = self.slots.iter().enumerate().map(|(index, slot)| {
            let mut labels: HashMap<String, String> = config.labels.clone().into_iter().collect();
            labels.extend(slot.block.labels.clone());
            let loaded = slot.engine.loaded();
            let own = slot.ineligible.borrow().clone();
            let versions = offer::versions(&slot.block, &labels, &slot.versions, loaded.as_ref());
            v1::SlotOffer {
                slot: index as u32,
                models: offer::models(&slot.block, loaded.as_ref()),
                tasks: offer::tasks(&slot.block),
                labels,
                engine: slot.block.kind.name().to_owned(),
                versions: versions.into_iter().collect(),
                ineligible: shortened(self.link.store_reason.clone().or(own).unwrap_or_default()),
            }
        });
        let held: Vec<_> = self.slots.iter().map(|slot| slot.lease_table.lock().held()).collect();
        v1::RegisterRequest {
            namespace: config.namespace.clone(),
            name: config.name.clone(),
            instance: self.instance,
            resume_session: self.state.session,
            coord_epoch_seen: self.client.coord_epoch(),
            cluster_id: self.client.cluster_id(),
            slots: slots.collect(),
            held: to_wire(&held),
            address: config.address.clone(),
            versions: self.versions.clone().into_iter().collect(),
            stores: self.stores.urls().to_vec(),
        }
    }
}

/// Whether a failed registration may succeed later without an operator. The next try replaces a session that the
/// cluster has forgotten.
fn mends_itself(error: &ClientError) -> bool {
    match error {
        ClientError::Rpc(refusal) => refusal.retryable || refusal.code == ErrorCode::SessionUnknown,
        ClientError::Connect(_) | ClientError::Tls(_) => false,
        _ => true,
    }
}

pub(super) enum Failed {
    Call(ClientError),
    Fatal(AgentError),
}

/// The ledger accepts no longer texts.
fn shortened(mut text: String) -> String {
    if text.len() > 512 {
        let end = (0..=512).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

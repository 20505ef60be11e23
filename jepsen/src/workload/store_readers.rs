//! Clients that each read a store from one member, whether that member leads or not.
//!
//! *Invariant:* a reader asks only its member and takes what that answers, even from an earlier epoch than other
//! clients have seen: if two members both answer, this shows the one that must not.
//! Absent: checks of the answers. These reads are operations of the history like those of all clients.

use super::positioned::Positioned;
use super::store::{KEYS, first_of, store};
use super::trainers::{LIMIT, Shared};
use crate::fleet::Fleet;
use crate::recorder::By;
use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_proto::v1;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use v1::store_client::StoreClient;

/// Pauses after an answer and after a refusal: a member that does not lead refuses at once.
const ANSWERED: Duration = Duration::from_millis(20);
const REFUSED: Duration = Duration::from_millis(150);

pub(super) struct Reader {
    member: String,
    store: StoreClient<tonic::transport::Channel>,
    shared: Arc<Shared>,
    rng: StdRng,
}

/// A reader for each original member, with the certificate of this client.
pub(super) fn of_each_member(
    fleet: &Fleet,
    client: &str,
    shared: &Arc<Shared>,
    seed: u64,
) -> Result<Vec<Reader>> {
    let channels = fleet.channels("client", client)?;
    let reader = |(number, (member, channel)): (u64, (String, tonic::transport::Channel))| Reader {
        member,
        store: StoreClient::new(channel),
        shared: shared.clone(),
        rng: StdRng::seed_from_u64(seed.wrapping_mul(41).wrapping_add(number)),
    };
    Ok((0..).zip(channels).map(reader).collect())
}

impl Reader {
    /// Reads until the run ends.
    pub(super) async fn run(mut self) -> Result<()> {
        while !self.shared.stopping() {
            let pause = if self.read().await { ANSWERED } else { REFUSED };
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Reads a key. True if it was answered.
    async fn read(&mut self) -> bool {
        let key = KEYS[self.rng.random_range(0..KEYS.len())];
        let recorder = self.shared.recorder.clone();
        let op = recorder.invoke("get", key.to_owned(), Value::Null, None);
        let request = v1::StoreReadRequest {
            store: store(),
            keys: vec![key.into()],
            ..v1::StoreReadRequest::default()
        };
        match tokio::time::timeout(LIMIT, self.store.read(request)).await {
            Ok(Ok(response)) => {
                let (answer, by) = Positioned::of(response).into_inner().into_parts();
                let by = By { member: Some(self.member.clone()), ..by };
                recorder.ok(&op, json!(first_of(answer)), by);
                true
            }
            Ok(Err(status)) => {
                recorder.fail(&op, format!("{}: {}", self.member, status.message()));
                false
            }
            Err(_) => {
                recorder.fail(&op, format!("{}: no answer in time", self.member));
                false
            }
        }
    }
}

//! Keys of a training job's store: a few clients set, read, compare, add to, append to, delete and wait for them; and
//! [whole small stores](super::kv_store). Runs that test leases also have [readers of one member
//! each](super::store_readers).
//!
//! *Invariant:* values are unique except for counters, so that a read identifies the write that it saw. Clients wait
//! for a gate before it is set.

use super::kv_store;
use super::positioned::Positioned;
use super::repeat;
use super::store_readers;
use super::trainers::{LIMIT, SendResult, Shared, Tasks, Trainer, WAIT_MS};
use crate::events::EventKind;
use crate::fleet::Fleet;
use crate::nemesis::Family;
use crate::recorder::Recorder;
use anyhow::Result;
use rand::Rng;
use rollout_proto::{CallOptions, services, v1};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use v1::store_answer::Kind as AnswerKind;
use v1::store_op::Kind as OpKind;

/// The clients of the store.
pub(super) const CLIENTS: &[&str] = &["k1", "k2", "k3", "k4"];
/// Keys with unique values, and counters.
pub(super) const KEYS: [&str; 6] = ["a", "b", "c", "d", "n", "m"];
/// The index at which the counters begin.
const PLAIN: usize = 4;

/// Unique values written before clients wait for the next gate.
const GATE_EVERY: u64 = 60;

pub struct Running {
    tasks: Tasks,
    last: User,
}

/// Starts every client.
///
/// # Errors
/// When a client cannot be made.
pub(super) fn start(
    fleet: &Fleet,
    recorder: &Arc<Recorder>,
    nemesis: &[Family],
    seed: u64,
) -> Result<Running> {
    let shared = Shared::new(recorder);
    let user = |name: &'static str, seed: u64| -> Result<User> {
        let trainer = Trainer::new(fleet, name, name, &shared, seed)?;
        Ok(User { trainer, seen: BTreeMap::new() })
    };
    let mut set = JoinSet::new();
    for (number, name) in (0..).zip(CLIENTS) {
        set.spawn(user(name, seed.wrapping_mul(37).wrapping_add(number))?.run(number == 0));
    }
    // Other clients leave a leader that answers no write, and ignore a leader whose successor they know.
    if nemesis.contains(&Family::Lease) {
        let readers = store_readers::of_each_member(fleet, CLIENTS[0], &shared, seed)?;
        for reader in readers {
            set.spawn(reader.run());
        }
    }
    let last = user(CLIENTS[0], seed)?;
    Ok(Running { tasks: Tasks { shared, set }, last })
}

impl Running {
    /// See [`super::Running::finish`].
    pub(super) async fn finish(mut self, recovery: Duration) -> Result<()> {
        self.tasks.end(recovery).await?;
        let mut answered = 0;
        for key in KEYS {
            let begun = Instant::now();
            let mut read = false;
            while !read && begun.elapsed() < recovery {
                read = self.last.get(key).await;
            }
            answered += u64::from(read);
        }
        let wanted = KEYS.len() as u64;
        self.tasks.shared.recorder.event(EventKind::FinalReads { wanted, answered });
        Ok(())
    }
}

pub(super) fn store() -> Option<v1::StoreName> {
    Some(v1::StoreName { job: "jepsen".into(), ..Default::default() })
}

/// The value of the first key of a read, if any.
pub(super) fn first_of(answer: v1::StoreReadResponse) -> Option<String> {
    match answer.values.into_iter().next().and_then(|value| value.kind) {
        Some(AnswerKind::Value(value)) => Some(text(&value)),
        _ => None,
    }
}

/// A value as it is recorded.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

struct User {
    trainer: Trainer,
    /// The last value read of each key.
    seen: BTreeMap<&'static str, String>,
}

impl User {
    /// Runs the client. `opens`: it sets the gates that the others wait for.
    async fn run(mut self, opens: bool) -> Result<()> {
        while !self.trainer.shared.stopping() {
            let key = KEYS[self.trainer.rng.random_range(0..PLAIN)];
            match self.trainer.rng.random_range(0..100) {
                0..10 => self.set(key).await,
                10..20 => self.swap(key).await,
                20..24 => self.append(key).await,
                24..28 => self.delete(key).await,
                28..36 => self.add().await,
                36..40 => self.reach().await,
                40..50 if opens => self.open_gate().await,
                40..50 => self.wait().await,
                50..85 => kv_store::use_one(&mut self.trainer).await,
                _ => {
                    let key = KEYS[self.trainer.rng.random_range(0..KEYS.len())];
                    self.get(key).await;
                }
            }
            self.trainer.pause(2..40).await;
        }
        Ok(())
    }

    fn unique(&self) -> String {
        format!("{}-{}", self.trainer.name, self.trainer.shared.next())
    }

    async fn set(&mut self, key: &'static str) {
        let value = self.unique();
        let pair = v1::StorePair { key: key.into(), value: value.clone().into() };
        let operation = OpKind::Set(v1::StoreSet { pairs: vec![pair] });
        self.apply("set", key.to_owned(), json!(value), operation).await;
    }

    async fn swap(&mut self, key: &'static str) {
        let desired = self.unique();
        let expected = match self.trainer.rng.random_ratio(1, 6) {
            true => None,
            false => self.seen.get(key).cloned(),
        };
        let operation = OpKind::CompareSet(v1::StoreCompareSet {
            key: key.into(),
            expected: expected.clone().unwrap_or_default().into(),
            desired: desired.clone().into(),
        });
        self.apply("swap", key.to_owned(), json!([expected, desired]), operation).await;
    }

    async fn append(&mut self, key: &'static str) {
        let value = self.unique();
        let pair = v1::StorePair { key: key.into(), value: value.clone().into() };
        self.apply("append", key.to_owned(), json!(value), OpKind::Append(pair)).await;
    }

    async fn delete(&mut self, key: &'static str) {
        self.apply("delete", key.to_owned(), Value::Null, OpKind::Delete(key.into())).await;
    }

    async fn add(&mut self) {
        let key = KEYS[self.trainer.rng.random_range(PLAIN..KEYS.len())];
        let delta = self.trainer.rng.random_range(1..9i64);
        let operation = OpKind::Add(v1::StoreAdd { key: key.into(), delta });
        self.apply("add", key.to_owned(), json!(delta), operation).await;
    }

    /// Sets the gate that clients wait for, and moves on to the next one.
    async fn open_gate(&mut self) {
        let number = self.trainer.shared.last() / GATE_EVERY;
        let key = format!("gate-{number}");
        self.trainer.pause(0..200).await;
        let pair = v1::StorePair { key: key.clone().into(), value: "open".into() };
        let operation = OpKind::Set(v1::StoreSet { pairs: vec![pair] });
        self.apply("set", key, json!("open"), operation).await;
    }

    async fn apply(&mut self, f: &'static str, key: String, value: Value, operation: OpKind) {
        let Some(request) = self.trainer.request().await else { return };
        let recorder = self.trainer.shared.recorder.clone();
        let op = recorder.invoke(f, key, value, Some(repeat::request_text(request.id())));
        let ops = vec![v1::StoreOp { kind: Some(operation) }];
        let send = |channel, id| {
            let request =
                v1::StoreApplyRequest { request: Some(id), store: store(), ops: ops.clone() };
            async move { services::store(channel).apply(request).await }
        };
        let summary = |answer: &v1::StoreApplyResponse| format!("{:?}", answer.answers);
        match self.trainer.change(request, f, send, summary).await {
            SendResult::Answered(answer, by) => {
                let answer = answer.answers.into_iter().next().and_then(|answer| answer.kind);
                let value = match answer {
                    Some(AnswerKind::Number(sum)) => json!(sum),
                    Some(AnswerKind::Value(value)) => json!(text(&value)),
                    Some(AnswerKind::Refused(why)) => {
                        // No operation here may be refused.
                        recorder.event(EventKind::Refused { what: f.to_owned(), why: why.clone() });
                        return recorder.fail(&op, why);
                    }
                    _ => Value::Null,
                };
                recorder.ok(&op, value, by);
            }
            SendResult::Refused(_, why) => recorder.fail(&op, why),
            SendResult::Lost(why) => recorder.info(&op, why),
        }
    }

    /// Reads a key. True if it was answered.
    async fn get(&mut self, key: &'static str) -> bool {
        let recorder = self.trainer.shared.recorder.clone();
        let op = recorder.invoke("get", key.to_owned(), Value::Null, None);
        let request = v1::StoreReadRequest {
            store: store(),
            keys: vec![key.into()],
            ..v1::StoreReadRequest::default()
        };
        let options = CallOptions::read().timeout(LIMIT * 2);
        let read = self.trainer.client.with_leader_opts("read the store", options, |channel| {
            let request = request.clone();
            async move { services::store(channel).read(request).await.map(Positioned::of) }
        });
        match read.await {
            Ok(positioned) => {
                let (answer, by) = positioned.into_parts();
                let seen = first_of(answer);
                match &seen {
                    Some(seen) => drop(self.seen.insert(key, seen.clone())),
                    None => drop(self.seen.remove(key)),
                }
                recorder.ok(&op, json!(seen), by);
                true
            }
            Err(error) => {
                recorder.fail(&op, error.to_string());
                false
            }
        }
    }

    /// Waits for the next gate, which is not set yet.
    async fn wait(&mut self) {
        let key = format!("gate-{}", self.trainer.shared.last() / GATE_EVERY);
        self.waited("wait", key, Value::Null, None).await;
    }

    /// Waits until a counter is a little larger than at its last read, or checks whether it is.
    async fn reach(&mut self) {
        let key = KEYS[self.trainer.rng.random_range(PLAIN..KEYS.len())];
        let seen: i64 = self.seen.get(key).and_then(|seen| seen.parse().ok()).unwrap_or(0);
        let least = seen + self.trainer.rng.random_range(0..30);
        self.waited("reach", key.to_owned(), json!(least), Some(least)).await;
    }

    async fn waited(&mut self, f: &'static str, key: String, value: Value, at_least: Option<i64>) {
        let recorder = self.trainer.shared.recorder.clone();
        let wait_ms = if self.trainer.rng.random_ratio(1, 4) { 0 } else { WAIT_MS };
        let op = recorder.invoke(f, key.clone(), value, None);
        let awaited = vec![v1::StoreAwaited { key: key.into(), at_least }];
        let request = v1::StoreWaitRequest { store: store(), awaited, wait_ms, values: false };
        let options = CallOptions::read().timeout(LIMIT * 2);
        let waited = self.trainer.client.with_leader_opts("wait", options, |channel| {
            let request = request.clone();
            async move { services::store(channel).wait(request).await.map(Positioned::of) }
        });
        match waited.await {
            Ok(positioned) => {
                let (answer, by) = positioned.into_parts();
                recorder.ok(&op, json!(answer.ready), by);
            }
            Err(error) => recorder.fail(&op, error.to_string()),
        }
    }
}

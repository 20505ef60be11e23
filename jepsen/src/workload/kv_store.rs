//! Whole small stores of a training job, one after another: one request changes several keys and a queue, and another
//! reads them.
//!
//! *Invariant:* a store is one object of a history, so it serves a few dozen requests only. Queue elements and values
//! are unique.

use super::positioned::Positioned;
use super::repeat;
use super::store::text;
use super::trainers::{LIMIT, SendResult, Trainer, WAIT_MS};
use crate::events::EventKind;
use rand::Rng;
use rollout_proto::{CallOptions, services, v1};
use serde_json::{Value, json};
use v1::store_answer::Kind as AnswerKind;
use v1::store_op::Kind as OpKind;

const KEYS: [&str; 4] = ["a", "b", "c", "d"];
const QUEUE: &str = "q";
/// Unique values written before the next store is used.
const EVERY: u64 = 60;

/// The number of the current store.
fn number(trainer: &Trainer) -> u64 {
    trainer.shared.last() / EVERY
}

fn key(number: u64) -> String {
    format!("shelf-{number}")
}

fn name(number: u64) -> Option<v1::StoreName> {
    Some(v1::StoreName { job: key(number), round: 1, ..Default::default() })
}

/// Sends one request of a random kind.
pub(super) async fn use_one(trainer: &mut Trainer) {
    match trainer.rng.random_range(0..100) {
        0..55 => apply(trainer).await,
        55..62 => wait(trainer).await,
        62..64 => drop_all(trainer).await,
        _ => look(trainer).await,
    }
}

/// A random operation: as requested, and as recorded.
fn act(trainer: &mut Trainer) -> (OpKind, Value) {
    let key = KEYS[trainer.rng.random_range(0..KEYS.len())];
    let value = format!("{}-{}", trainer.name, trainer.shared.next());
    let pair = |key: &'static str, value: &str| v1::StorePair {
        key: key.into(),
        value: value.to_owned().into(),
    };
    match trainer.rng.random_range(0..10) {
        0..3 => {
            let (mut pairs, mut input) = (Vec::new(), vec![json!("set")]);
            for key in KEYS.into_iter().filter(|_| trainer.rng.random_bool(0.6)).chain(["z"]) {
                pairs.push(pair(key, &value));
                input.extend([json!(key), json!(value)]);
            }
            (OpKind::Set(v1::StoreSet { pairs }), Value::Array(input))
        }
        3 => (OpKind::Append(pair(key, &value)), json!(["append", key, value])),
        4 => (OpKind::Delete(key.into()), json!(["delete", key])),
        5..8 => (OpKind::Push(pair(QUEUE, &value)), json!(["push", QUEUE, value])),
        _ => (OpKind::Pop(QUEUE.into()), json!(["pop", QUEUE])),
    }
}

async fn apply(trainer: &mut Trainer) {
    let Some(request) = trainer.request().await else { return };
    let number = number(trainer);
    let count = if trainer.rng.random_bool(0.5) { 1 } else { trainer.rng.random_range(2..4) };
    let (operations, inputs): (Vec<_>, Vec<_>) = (0..count).map(|_| act(trainer)).unzip();
    let ops: Vec<_> = operations.into_iter().map(|kind| v1::StoreOp { kind: Some(kind) }).collect();
    let recorder = trainer.shared.recorder.clone();
    let op = recorder.invoke(
        "apply",
        key(number),
        Value::Array(inputs),
        Some(repeat::request_text(request.id())),
    );
    let send = |channel, id| {
        let (store, ops) = (name(number), ops.clone());
        let request = v1::StoreApplyRequest { request: Some(id), store, ops };
        async move { services::store(channel).apply(request).await }
    };
    let summary = |answer: &v1::StoreApplyResponse| format!("{:?}", answer.answers);
    match trainer.change(request, "apply", send, summary).await {
        SendResult::Answered(answer, by) => {
            let mut values = Vec::new();
            for answer in answer.answers {
                values.push(match answer.kind {
                    Some(AnswerKind::Number(number)) => json!(number),
                    Some(AnswerKind::Value(value)) => json!(text(&value)),
                    Some(AnswerKind::Refused(why)) => {
                        let what = format!("an operation on {}", key(number));
                        recorder.event(EventKind::Refused { what, why: why.clone() });
                        json!(["refused", why])
                    }
                    Some(AnswerKind::Done(_) | AnswerKind::Nothing(_)) | None => Value::Null,
                });
            }
            recorder.ok(&op, Value::Array(values), by);
        }
        SendResult::Refused(_, why) => recorder.fail(&op, why),
        SendResult::Lost(why) => recorder.info(&op, why),
    }
}

/// Reads some of the keys, the names of all keys, and the length of the queue.
async fn look(trainer: &mut Trainer) {
    let number = number(trainer);
    let keys: Vec<&str> = KEYS.into_iter().filter(|_| trainer.rng.random()).chain(["z"]).collect();
    let mut names = vec![QUEUE];
    names.extend(&keys);
    let recorder = trainer.shared.recorder.clone();
    let op = recorder.invoke("look", key(number), json!(names), None);
    let request = v1::StoreReadRequest {
        store: name(number),
        keys: keys.into_iter().map(Into::into).collect(),
        list_keys: true,
        queues: vec![QUEUE.into()],
    };
    let options = CallOptions::read().timeout(LIMIT * 2);
    let read = trainer.client.with_leader_opts("read the store", options, |channel| {
        let request = request.clone();
        async move { services::store(channel).read(request).await.map(Positioned::of) }
    });
    match read.await {
        Ok(positioned) => {
            let (answer, by) = positioned.into_parts();
            let values: Vec<Value> = answer
                .values
                .into_iter()
                .map(|value| match value.kind {
                    Some(AnswerKind::Value(value)) => json!(text(&value)),
                    _ => Value::Null,
                })
                .collect();
            let names: Vec<String> = answer.present.iter().map(|name| text(name)).collect();
            let seen = json!([values, answer.keys, answer.lengths.first(), names]);
            recorder.ok(&op, seen, by);
        }
        Err(error) => recorder.fail(&op, error.to_string()),
    }
}

/// Waits for an element in the queue, or checks for one.
async fn wait(trainer: &mut Trainer) {
    let number = number(trainer);
    let wait_ms = if trainer.rng.random() { WAIT_MS } else { 0 };
    let recorder = trainer.shared.recorder.clone();
    let op = recorder.invoke("wait", key(number), json!(QUEUE), None);
    let awaited = vec![v1::StoreAwaited { key: QUEUE.into(), at_least: None }];
    let request = v1::StoreWaitRequest { store: name(number), awaited, wait_ms, values: false };
    let options = CallOptions::read().timeout(LIMIT * 2);
    let waited = trainer.client.with_leader_opts("wait", options, |channel| {
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

/// Drops the store; another one of its name begins.
async fn drop_all(trainer: &mut Trainer) {
    let Some(request) = trainer.request().await else { return };
    let number = number(trainer);
    let recorder = trainer.shared.recorder.clone();
    let op =
        recorder.invoke("drop", key(number), Value::Null, Some(repeat::request_text(request.id())));
    let send = |channel, id| {
        let request = v1::StoreDropRequest { request: Some(id), store: name(number) };
        async move { services::store(channel).drop(request).await }
    };
    match trainer.change(request, "drop", send, |_| String::new()).await {
        SendResult::Answered(_, by) => recorder.ok(&op, Value::Null, by),
        SendResult::Refused(_, why) => recorder.fail(&op, why),
        SendResult::Lost(why) => recorder.info(&op, why),
    }
}

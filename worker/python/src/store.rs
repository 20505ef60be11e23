//! Owns: a job's store, with one call for each operation.
//!
//! *Invariant:* a call that ends with TimeoutError used one request ID throughout, so its change may still take
//! effect, at most once.
//! Absent: torch's class; the package has that.

use std::time::Duration;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use rollout_gateway::{JobStore as Store, WaitRoom, Waiting, present};
use rollout_proto::{Client, ClientError, v1};
use tokio::task::JoinHandle;
use v1::store_answer::Kind as AnswerKind;
use v1::store_op::Kind as Op;

use crate::error::{RolloutError, raised};
use crate::wait::{runtime, too_long, wait, wait_or_raise};

/// A job's store.
#[pyclass(frozen)]
pub struct JobStore {
    store: Store,
    using: JoinHandle<()>,
}

impl Drop for JobStore {
    fn drop(&mut self) {
        self.using.abort();
    }
}

impl JobStore {
    /// Its waits share the places of `room`.
    pub(crate) fn start(client: Client, room: WaitRoom, name: v1::StoreName) -> PyResult<Self> {
        let runtime = runtime()?;
        let store = Store::sharing(client, room, name);
        let used = store.clone();
        let using = runtime.spawn(async move {
            // The next call of a user reports the error.
            let _refused = used.keep_using().await;
        });
        Ok(Self { store, using })
    }

    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        timeout_ms: u64,
        what: &str,
        work: impl Future<Output = Result<T, ClientError>> + Send,
    ) -> PyResult<T> {
        wait_or_raise(py, Duration::from_millis(timeout_ms), what, work)?.map_err(raised)
    }

    /// As [`Self::ask`]; TimeoutError names the keys that were not seen.
    fn await_<T: Send>(
        &self,
        py: Python<'_>,
        timeout_ms: u64,
        waiting: &Waiting,
        work: impl Future<Output = Result<T, ClientError>> + Send,
    ) -> PyResult<T> {
        match wait(py, Duration::from_millis(timeout_ms), work)? {
            Some(done) => done.map_err(raised),
            None => Err(too_long(Duration::from_millis(timeout_ms), &unseen(waiting))),
        }
    }

    fn change(&self, py: Python<'_>, timeout_ms: u64, what: &str, op: Op) -> PyResult<AnswerKind> {
        let what = format!("no answer to {what}; it may yet take effect");
        match self.ask(py, timeout_ms, &what, self.store.change(op))? {
            AnswerKind::Refused(why) => {
                Err(RolloutError::new_err(format!("the store refuses: {why}")))
            }
            answer => Ok(answer),
        }
    }

    fn number(&self, py: Python<'_>, timeout_ms: u64, what: &str, op: Op) -> PyResult<i64> {
        match self.change(py, timeout_ms, what, op)? {
            AnswerKind::Number(number) => Ok(number),
            other => Err(RolloutError::new_err(format!("{what} was answered with {other:?}"))),
        }
    }
}

#[pymethods]
impl JobStore {
    /// Tells the cluster that the store is in use, which also checks that the cluster is reachable.
    fn connect(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<()> {
        self.ask(py, timeout_ms, "the cluster does not answer", self.store.use_it())
    }

    /// Sets all pairs or none.
    fn set(
        &self,
        py: Python<'_>,
        pairs: Vec<(String, PyBackedBytes)>,
        timeout_ms: u64,
    ) -> PyResult<()> {
        let what = match pairs.as_slice() {
            [(key, _)] => format!("set({key})"),
            pairs => format!("the set of {} keys", pairs.len()),
        };
        let pairs = pairs.into_iter().map(|(key, value)| pair(key, &value)).collect();
        self.change(py, timeout_ms, &what, Op::Set(v1::StoreSet { pairs })).map(drop)
    }

    /// The values of keys, once all exist. A key that has only a queue of its name is empty.
    fn get<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<String>,
        timeout_ms: u64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let keys: Vec<Bytes> = keys.into_iter().map(Bytes::from).collect();
        let waiting = waiting_for(&keys);
        let values = self.await_(py, timeout_ms, &waiting, fetch(&self.store, keys, &waiting))?;
        Ok(values.iter().map(|value| PyBytes::new(py, value)).collect())
    }

    /// Adds to a counter; returns the sum.
    fn add(&self, py: Python<'_>, key: String, delta: i64, timeout_ms: u64) -> PyResult<i64> {
        let what = format!("add({key})");
        self.number(py, timeout_ms, &what, Op::Add(v1::StoreAdd { key: key.into(), delta }))
    }

    /// Returns the value that the key has afterward.
    fn compare_set<'py>(
        &self,
        py: Python<'py>,
        key: String,
        expected: PyBackedBytes,
        desired: PyBackedBytes,
        timeout_ms: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let what = format!("compare_set({key})");
        let op = Op::CompareSet(v1::StoreCompareSet {
            key: key.into(),
            expected: Bytes::copy_from_slice(&expected),
            desired: Bytes::copy_from_slice(&desired),
        });
        match self.change(py, timeout_ms, &what, op)? {
            AnswerKind::Value(value) => Ok(PyBytes::new(py, &value)),
            _ => Ok(PyBytes::new(py, &[])),
        }
    }

    /// Appends to a value.
    fn append(
        &self,
        py: Python<'_>,
        key: String,
        value: PyBackedBytes,
        timeout_ms: u64,
    ) -> PyResult<()> {
        let what = format!("append({key})");
        self.change(py, timeout_ms, &what, Op::Append(pair(key, &value))).map(drop)
    }

    /// Deletes a key; returns whether it existed.
    fn delete_key(&self, py: Python<'_>, key: String, timeout_ms: u64) -> PyResult<bool> {
        let what = format!("delete_key({key})");
        Ok(self.number(py, timeout_ms, &what, Op::Delete(key.into()))? != 0)
    }

    /// Whether all keys exist now.
    fn check(&self, py: Python<'_>, keys: Vec<String>, timeout_ms: u64) -> PyResult<bool> {
        let keys = keys.into_iter().map(Bytes::from).collect();
        self.ask(py, timeout_ms, "no answer to check", self.store.there(keys))
    }

    /// Returns once all keys exist.
    fn wait(&self, py: Python<'_>, keys: Vec<String>, timeout_ms: u64) -> PyResult<()> {
        let keys: Vec<Bytes> = keys.into_iter().map(Bytes::from).collect();
        let waiting = waiting_for(&keys);
        self.await_(py, timeout_ms, &waiting, self.store.wait(&waiting))
    }

    /// Counts one more arrival at the key; returns once `size` have arrived.
    fn barrier(&self, py: Python<'_>, key: String, size: i64, timeout_ms: u64) -> PyResult<()> {
        let what = format!("not all {size} have arrived at {key}");
        let key = Bytes::from(key);
        let arrive = async {
            let arrived = v1::StoreAdd { key: key.clone(), delta: 1 };
            if let AnswerKind::Refused(why) = self.store.change(Op::Add(arrived)).await? {
                return Ok(Err(why));
            }
            let all = v1::StoreAwaited { key: key.clone(), at_least: Some(size) };
            self.store.wait(&Waiting::new(vec![all])).await.map(Ok)
        };
        let arrived = self.ask(py, timeout_ms, &what, arrive)?;
        arrived.map_err(|why| RolloutError::new_err(format!("the store refuses: {why}")))
    }

    /// The number of keys with a value.
    fn num_keys(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<u64> {
        let answer = self.store.read(v1::StoreReadRequest::default());
        Ok(self.ask(py, timeout_ms, "no answer to num_keys", answer)?.keys)
    }

    /// The keys with a value.
    fn list_keys(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<Vec<String>> {
        let request = v1::StoreReadRequest { list_keys: true, ..Default::default() };
        let keys = self.ask(py, timeout_ms, "no answer to list_keys", self.store.read(request))?;
        let text = |key: &Bytes| String::from_utf8_lossy(key).into_owned();
        Ok(keys.present.iter().map(text).collect())
    }

    /// Appends an element to a queue.
    fn queue_push(
        &self,
        py: Python<'_>,
        queue: String,
        value: PyBackedBytes,
        timeout_ms: u64,
    ) -> PyResult<()> {
        let what = format!("queue_push({queue})");
        self.change(py, timeout_ms, &what, Op::Push(pair(queue, &value))).map(drop)
    }

    /// Takes a queue's first element; with `block` it waits for one. Returns None if there is none.
    fn queue_pop<'py>(
        &self,
        py: Python<'py>,
        queue: String,
        block: bool,
        timeout_ms: u64,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let what = format!("keys: {queue}");
        let popped = self.ask(py, timeout_ms, &what, pop(&self.store, queue.into(), block))?;
        match popped {
            AnswerKind::Value(value) => Ok(Some(PyBytes::new(py, &value))),
            AnswerKind::Refused(why) => {
                Err(RolloutError::new_err(format!("the store refuses: {why}")))
            }
            _ => Ok(None),
        }
    }

    /// The number of elements of a queue.
    fn queue_len(&self, py: Python<'_>, queue: String, timeout_ms: u64) -> PyResult<u64> {
        let request = v1::StoreReadRequest { queues: vec![queue.into()], ..Default::default() };
        let read = self.ask(py, timeout_ms, "no answer to queue_len", self.store.read(request))?;
        Ok(read.lengths.first().copied().unwrap_or(0))
    }
}

fn pair(key: String, value: &[u8]) -> v1::StorePair {
    v1::StorePair { key: key.into(), value: Bytes::copy_from_slice(value) }
}

fn waiting_for(keys: &[Bytes]) -> Waiting {
    Waiting::new(keys.iter().cloned().map(present).collect())
}

/// The keys that a timed-out wait did not see.
fn unseen(waiting: &Waiting) -> String {
    const NAMED: usize = 8;
    let missing = waiting.missing();
    let named = missing.iter().take(NAMED).map(|key| String::from_utf8_lossy(key).into_owned());
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match missing.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (all, seen) = (waiting.total(), waiting.total() - missing.len());
    match all {
        1 => format!("keys: {named}"),
        _ => format!("keys: {named}{more} ({seen} of {all} were seen)"),
    }
}

async fn fetch(
    store: &Store,
    keys: Vec<Bytes>,
    waiting: &Waiting,
) -> Result<Vec<Bytes>, ClientError> {
    loop {
        let values = store.values(keys.clone()).await?;
        let without = keys.iter().zip(&values).filter(|(_, value)| value.is_none());
        let queues: Vec<Bytes> = without.map(|(key, _)| key.clone()).collect();
        let mut there = queues.is_empty();
        if !there {
            let request = v1::StoreReadRequest { queues, ..Default::default() };
            there = store.read(request).await?.lengths.iter().all(|len| *len > 0);
        }
        if there {
            return Ok(values.into_iter().map(Option::unwrap_or_default).collect());
        }
        // A key deleted since it was seen has no value to get, so wait for it again.
        waiting.again();
        if let Some(values) = store.wait_for_values(waiting).await? {
            return Ok(values);
        }
    }
}

/// If several wait, all learn of an element and one gets it; the others keep waiting.
async fn pop(store: &Store, queue: Bytes, block: bool) -> Result<AnswerKind, ClientError> {
    loop {
        let popped = store.change(Op::Pop(queue.clone())).await?;
        // A key of that name with a value would end every wait at once.
        if !block
            || !matches!(popped, AnswerKind::Nothing(_))
            || store.has_value(queue.clone()).await?
        {
            return Ok(popped);
        }
        store.wait(&Waiting::new(vec![present(queue.clone())])).await?;
    }
}

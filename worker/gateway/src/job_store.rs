//! Owns: a job's store as its users see it, with one call for each operation.
//!
//! Invariant: a change keeps one request ID until the cluster answers, even if the cluster has no leader for long; a
//! read is sent again. Concurrent operations of several callers share a request. Callers do not notice a forgotten
//! session unless it leaves an outcome unknown. Errors are final.
//! Absent: time limits. A caller gives up by dropping the call; a change may then still take effect.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rollout_proto::{Client, ClientError, ErrorCode, RpcError, v1};

use super::awaited_keys::Waiting;
use super::batches::{self, Answered, Batches};
use super::calls;
use super::exchanges::{Changes, Gets, WaitForOne, grows};
use super::sessions::Sessions;
use super::wait_room::WaitRoom;

/// How often the store is touched when it is otherwise unused: well within the day after which the cluster would
/// forget it.
const USE_EVERY: Duration = Duration::from_secs(3600);
/// Bytes of values in one answer. A store has no more, but a request may name a key twice.
const VALUES_BYTES_MAX: usize = 64 << 20;

/// A job's store. Clones share connections, sessions and requests.
#[derive(Clone)]
pub struct JobStore {
    client: Client,
    name: v1::StoreName,
    /// Changes that may enlarge the store.
    growing: Arc<Batches<Changes>>,
    /// Changes that do not enlarge it.
    others: Arc<Batches<Changes>>,
    gets: Arc<Batches<Gets>>,
    /// Waits for one key, while a caller waits for it.
    waits: Arc<Mutex<Waits>>,
    room: WaitRoom,
    sessions: Sessions,
}

/// By key, minimum value, and whether the value is requested.
type Waits = HashMap<(Bytes, Option<i64>, bool), Weak<Batches<WaitForOne>>>;

/// A change in flight.
pub(crate) struct Begun(Answered<Vec<v1::store_answer::Kind>>);

impl Begun {
    pub(crate) async fn answer(&mut self) -> Result<v1::store_answer::Kind, ClientError> {
        batches::answer(&mut self.0).await.map(only)
    }

    /// Its answer, if it has arrived.
    pub(crate) fn try_answer(&mut self) -> Option<Result<v1::store_answer::Kind, ClientError>> {
        self.0.try_recv().ok().map(|answer| answer.map(only))
    }
}

fn only(answers: Vec<v1::store_answer::Kind>) -> v1::store_answer::Kind {
    answers.into_iter().next().unwrap_or(v1::store_answer::Kind::Nothing(true))
}

impl JobStore {
    /// The store of this name. This sends no request yet.
    pub fn new(client: Client, name: v1::StoreName) -> Self {
        Self::sharing(client, WaitRoom::new(), name)
    }

    /// The same, for a client whose connection other waits use too: their waits share the places of `room`.
    pub fn sharing(client: Client, room: WaitRoom, name: v1::StoreName) -> Self {
        Self::with_sessions(Sessions::new(client.clone()), (client, room), name)
    }

    /// Another store of the same cluster, over the same connections and sessions.
    pub fn other(&self, name: v1::StoreName) -> Self {
        let connections = (self.client.clone(), self.room.clone());
        Self::with_sessions(self.sessions.clone(), connections, name)
    }

    fn with_sessions(
        sessions: Sessions,
        (client, room): (Client, WaitRoom),
        name: v1::StoreName,
    ) -> Self {
        let changes =
            Changes { client: client.clone(), sessions: sessions.clone(), name: name.clone() };
        let gets = Gets { client: client.clone(), name: name.clone() };
        let growing = Arc::new(Batches::new(changes.clone()));
        let (others, gets) = (Arc::new(Batches::new(changes)), Arc::new(Batches::new(gets)));
        Self { client, name, growing, others, gets, waits: Arc::default(), room, sessions }
    }

    /// The client that sends its requests.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn name(&self) -> &v1::StoreName {
        &self.name
    }

    /// Tells the cluster that the store is in use.
    pub async fn use_it(&self) -> Result<(), ClientError> {
        self.others.call(Vec::new()).await.map(|_| ())
    }

    /// Keeps the store from being forgotten while a job computes for days without it. Returns only when the cluster
    /// refuses it.
    pub async fn keep_using(&self) -> ClientError {
        loop {
            tokio::time::sleep(USE_EVERY).await;
            match self.use_it().await {
                // It was touched, or will be next time, in another session.
                Err(ClientError::OutcomeUnknown { .. }) => {}
                Err(error) => return error,
                Ok(()) => {}
            }
        }
    }

    /// Makes one change; returns its answer.
    pub async fn change(
        &self,
        kind: v1::store_op::Kind,
    ) -> Result<v1::store_answer::Kind, ClientError> {
        self.begin(kind).await.answer().await
    }

    /// Makes changes that take effect in this order; returns the answer of each.
    pub async fn change_all(
        &self,
        kinds: Vec<v1::store_op::Kind>,
    ) -> Result<Vec<v1::store_answer::Kind>, ClientError> {
        self.growing.call(kinds).await
    }

    /// Starts a change. Changes that may enlarge the store take effect in the order in which they were started, and so
    /// do the others.
    pub(crate) async fn begin(&self, kind: v1::store_op::Kind) -> Begun {
        let queue = if grows(&kind) { &self.growing } else { &self.others };
        Begun(queue.begin(vec![kind]).await)
    }

    /// Values at one moment, by position, or nothing if they are too many for one answer.
    pub(crate) async fn values_at_once(
        &self,
        keys: Vec<Bytes>,
    ) -> Result<Option<Vec<Option<Bytes>>>, ClientError> {
        self.gets.call(keys).await
    }

    /// Values by position, or nothing for a key without a value. They are of one moment only if they are few: values
    /// over 8 MiB are read again.
    pub async fn values(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Bytes>>, ClientError> {
        if let Some(values) = self.values_at_once(keys.clone()).await? {
            return Ok(values);
        }
        let mut values = Vec::with_capacity(keys.len());
        let mut bytes = 0;
        while values.len() < keys.len() {
            let keys = keys[values.len()..].to_vec();
            let answer = self.read(v1::StoreReadRequest { keys, ..Default::default() }).await?;
            if answer.values.is_empty() {
                break;
            }
            for value in answer.values.into_iter().map(calls::value) {
                bytes += value.as_ref().map_or(0, Bytes::len);
                values.push(value);
            }
            if bytes > VALUES_BYTES_MAX {
                let message = format!(
                    "the values take more than {VALUES_BYTES_MAX} bytes: ask for fewer keys"
                );
                return Err(RpcError::new(ErrorCode::LimitExceeded, message).into());
            }
        }
        Ok(values)
    }

    /// Whether the key itself has a value, regardless of the queue of its name.
    pub async fn has_value(&self, key: Bytes) -> Result<bool, ClientError> {
        Ok(self.values(vec![key]).await?.first().is_some_and(Option::is_some))
    }

    /// The store's own figures.
    pub async fn read(
        &self,
        request: v1::StoreReadRequest,
    ) -> Result<v1::StoreReadResponse, ClientError> {
        let request = v1::StoreReadRequest { store: Some(self.name.clone()), ..request };
        calls::read(&self.client, request).await
    }

    /// Whether all of these exist now.
    pub async fn there(&self, keys: Vec<Bytes>) -> Result<bool, ClientError> {
        let awaited = keys.into_iter().map(present).collect();
        Ok(calls::wait_once(&self.client, self.wait_request(awaited, false)).await?.ready)
    }

    /// Returns once each of these has existed, though not all at the same time, as in TCPStore.
    pub async fn wait(&self, waiting: &Waiting) -> Result<(), ClientError> {
        self.wait_with(waiting, false).await.map(drop)
    }

    /// The same, with the values of all of them at one moment within the call. Returns nothing if one has no value by
    /// then, if they are too many for one answer, or if one was seen long before the last: then read them.
    pub async fn wait_for_values(
        &self,
        waiting: &Waiting,
    ) -> Result<Option<Vec<Bytes>>, ClientError> {
        self.wait_with(waiting, true).await
    }

    async fn wait_with(
        &self,
        waiting: &Waiting,
        values: bool,
    ) -> Result<Option<Vec<Bytes>>, ClientError> {
        loop {
            let left = waiting.left();
            let awaited_count = waiting.total();
            // An answer has the values of the keys in its request, and of none that was seen before.
            let values = values && left.len() == awaited_count;
            let all = |values: Vec<Option<Bytes>>| {
                let values: Option<Vec<Bytes>> = values.into_iter().collect();
                values.filter(|values| values.len() == awaited_count)
            };
            if let [one] = left.as_slice() {
                let values = self.waits_for(one, values).call(()).await?;
                waiting.saw(&[0]);
                return Ok(all(values));
            }
            let request = self.wait_request(left, values);
            let answer = calls::wait((&self.client, &self.room), request).await?;
            if answer.ready {
                return Ok(all(answer.values.into_iter().map(calls::value).collect()));
            }
            waiting.saw(&answer.seen);
        }
    }

    /// The wait that all callers that wait for this share.
    fn waits_for(&self, one: &v1::StoreAwaited, values: bool) -> Arc<Batches<WaitForOne>> {
        let mut waits = self.waits.lock();
        let key = (one.key.clone(), one.at_least, values);
        if let Some(wait) = waits.get(&key).and_then(Weak::upgrade) {
            return wait;
        }
        waits.retain(|_, wait| wait.strong_count() > 0);
        let (client, room) = (self.client.clone(), self.room.clone());
        let request = self.wait_request(vec![one.clone()], values);
        let wait = Arc::new(Batches::new(WaitForOne { client, room, request }));
        waits.insert(key, Arc::downgrade(&wait));
        wait
    }

    /// Whether these exist now.
    fn wait_request(&self, awaited: Vec<v1::StoreAwaited>, values: bool) -> v1::StoreWaitRequest {
        v1::StoreWaitRequest { store: Some(self.name.clone()), awaited, wait_ms: 0, values }
    }
}

/// A key with a value, or a queue with an element.
pub fn present(key: Bytes) -> v1::StoreAwaited {
    v1::StoreAwaited { key, at_least: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;
    use crate::wait_room::PLACES;
    use tokio::task::JoinSet;

    #[tokio::test]
    async fn other_calls_pass_however_many_wait() {
        let limit = Duration::from_secs(10);
        let (client, asked, _member) = fake::start().await;
        asked.hold_waits();
        let name =
            v1::StoreName { namespace: "default".into(), job: "j".into(), round: 1, ticket: 0 };
        let store = JobStore::new(client, name);
        let mut waits = JoinSet::new();
        for n in 0..400 {
            let store = store.clone();
            let waiting = Waiting::new(vec![present(format!("k{n}").into())]);
            waits.spawn(async move { store.wait(&waiting).await });
        }
        let held = async {
            while asked.counts().1 < PLACES {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(limit, held).await.expect("as many as there are places");
        let read = tokio::time::timeout(limit, store.values(vec!["k".into()])).await;
        let values = read.expect("it passes the waits").expect("an answer");
        assert_eq!(values, [Some(Bytes::from_static(fake::VALUE))]);
        assert_eq!(asked.counts().1, PLACES, "the others wait here");
    }

    #[tokio::test]
    async fn waits_of_stores_of_one_client_share_their_places_and_other_calls_pass_them() {
        let limit = Duration::from_secs(10);
        let (client, asked, _member) = fake::start().await;
        asked.hold_waits();
        let room = WaitRoom::new();
        let [one, two] = ["one", "two"].map(|job| {
            let name = v1::StoreName { job: job.into(), round: 1, ..Default::default() };
            JobStore::sharing(client.clone(), room.clone(), name)
        });
        let mut waits = JoinSet::new();
        for n in 0..200 {
            for store in [one.clone(), two.clone()] {
                let waiting = Waiting::new(vec![present(format!("k{n}").into())]);
                waits.spawn(async move { store.wait(&waiting).await });
            }
        }
        let held = async {
            while asked.counts().1 < PLACES {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(limit, held).await.expect("as many as there are places");
        for store in [&one, &two] {
            let read = tokio::time::timeout(limit, store.values(vec!["k".into()])).await;
            read.expect("it passes the waits").expect("an answer");
        }
        assert_eq!(asked.counts().1, PLACES, "the others wait here");
    }
}

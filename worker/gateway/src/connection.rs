//! Owns: one client connection to the gateway, from its first byte to its last.
//!
//! Invariant: requests are answered one at a time, in order. While one waits, the gateway reads the socket only to see
//! whether the client cancels the wait or disconnects. Changes that need no answer in the protocol start in order
//! without waiting for each other; any other request starts after all of them have taken effect. If the cluster
//! refuses a request, the connection ends, because the protocol has no error reply.
//! Absent: a time limit. The client has one and cancels its wait.

use std::io;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use rollout_proto::{ClientError, STORE_REQUEST_BYTES_MAX, v1};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::awaited_keys::Waiting;
use super::job_store::{JobStore, present};
use super::unanswered::{ConnectionEnd, Unanswered};
use super::wire::{self, Query, bad};

const READ_BYTES: usize = 16 << 10;
const STOP_WAITING: u8 = 0;
const WAIT_CANCELED: u8 = 1;
const READY: u8 = 0;
const NOT_READY: u8 = 1;
/// How long a pop continues to wait after the client waited for its queue and another client was faster. It is torch's
/// own timeout, because the client does not send its own.
const POP_WITHIN: Duration = Duration::from_secs(300);

/// Bytes of values kept from the end of a wait to the get that follows it, and for how long: a client whose two
/// requests are one operation sends the second at once.
const KEPT_BYTES_MAX: usize = 256 << 10;
const KEPT_FOR: Duration = Duration::from_secs(1);

pub(super) struct Connection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    store: JobStore,
    /// Changes that the client does not wait for.
    unanswered: Unanswered,
    /// What the last request waited for, if that wait ended it.
    waited: Option<WaitedFor>,
}

/// The keys that a request waited for, and their values at one moment after it arrived.
///
/// torch's client gets in two requests, a wait and a get, that are one operation. These values answer a get that
/// directly follows a wait for the same keys on its connection.
struct WaitedFor {
    keys: Vec<Bytes>,
    values: Vec<Bytes>,
    /// When the wait ended. The values were read before that, within the operation that the get ends.
    since: Instant,
}

impl WaitedFor {
    /// The values, if the keys match and the values are not too old.
    fn values_of(self, keys: &[Bytes], now: Instant) -> Option<Vec<Bytes>> {
        let young = now.saturating_duration_since(self.since) <= KEPT_FOR;
        (young && self.keys == keys && !self.values.is_empty()).then_some(self.values)
    }
}

/// How a wait ended.
enum Waited {
    Ready(Option<Vec<Bytes>>),
    Canceled,
    Gone,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, store: JobStore) -> Self {
        // Requests are small, and the client waits for each answer.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "small packets are held back");
        }
        let (reader, writer) = stream.into_split();
        let (reader, unanswered) =
            (BufReader::with_capacity(READ_BYTES, reader), Unanswered::default());
        Self { reader, writer, store, unanswered, waited: None }
    }

    /// Serves until the client has gone.
    pub(super) async fn run(mut self) -> Result<(), ConnectionEnd> {
        let served = self.serve_all().await;
        let Self { reader, writer, mut unanswered, .. } = self;
        if served.is_err() {
            // The client learns of it now, rather than after the cluster has answered all of its requests.
            drop((reader, writer));
        }
        // Changes that it sent before it disconnected take effect.
        served.and(unanswered.settled().await)
    }

    /// Waits for the next request; false once the client has gone.
    async fn another(&mut self) -> Result<bool, ConnectionEnd> {
        loop {
            if !self.reader.buffer().is_empty() {
                return Ok(true);
            }
            tokio::select! {
                biased;
                read = self.reader.fill_buf() => return Ok(!read?.is_empty()),
                taken = self.unanswered.first(), if !self.unanswered.is_empty() => taken?,
            }
        }
    }

    async fn serve_all(&mut self) -> Result<(), ConnectionEnd> {
        let mut first = true;
        while self.another().await? {
            let query = Query::of(self.reader.read_u8().await?)?;
            if first != (query == Query::Validate) {
                return Err(bad(format!("{query:?} is out of place")).into());
            }
            first = false;
            let waited = self.waited.take();
            if !self.serve(query, waited).await? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// False once the client has gone.
    async fn serve(
        &mut self,
        query: Query,
        waited: Option<WaitedFor>,
    ) -> Result<bool, ConnectionEnd> {
        use v1::store_op::Kind;
        match query {
            Query::Validate => {
                if self.reader.read_u32_le().await? != wire::MAGIC {
                    return Err(bad("the client speaks another protocol").into());
                }
            }
            Query::Ping => {
                let nonce = self.reader.read_u32_le().await?;
                self.writer.write_u32_le(nonce).await?;
            }
            Query::Set => {
                let pairs = vec![self.pair().await?];
                self.begin(Kind::Set(v1::StoreSet { pairs })).await?;
            }
            Query::MultiSet => {
                let count = wire::count(&mut self.reader).await?;
                let (mut pairs, mut bytes) = (Vec::new(), 0);
                for _ in 0..count {
                    let pair = self.pair().await?;
                    bytes += pair.key.len() + pair.value.len();
                    if bytes > STORE_REQUEST_BYTES_MAX {
                        let what = format!("a set of more than {STORE_REQUEST_BYTES_MAX} bytes");
                        return Err(bad(what).into());
                    }
                    pairs.push(pair);
                }
                self.begin(Kind::Set(v1::StoreSet { pairs })).await?;
            }
            Query::Append => {
                let pair = self.pair().await?;
                self.begin(Kind::Append(pair)).await?;
            }
            Query::QueuePush => {
                let pair = self.pair().await?;
                self.begin(Kind::Push(pair)).await?;
            }
            query => {
                self.unanswered.settled().await?;
                return self.answer(query, waited).await;
            }
        }
        Ok(true)
    }

    /// Answers a request after all earlier ones have taken effect; false once the client has gone.
    async fn answer(
        &mut self,
        query: Query,
        waited: Option<WaitedFor>,
    ) -> Result<bool, ConnectionEnd> {
        use v1::store_op::Kind;
        match query {
            Query::CompareSet => self.compare_set().await?,
            Query::Add => {
                let key = wire::key(&mut self.reader).await?;
                let delta = self.reader.read_i64_le().await?;
                let sum = self.number(Kind::Add(v1::StoreAdd { key, delta })).await?;
                self.writer.write_i64_le(sum).await?;
            }
            Query::Delete => {
                let key = wire::key(&mut self.reader).await?;
                let gone = self.number(Kind::Delete(key)).await?;
                self.writer.write_i64_le(gone).await?;
            }
            Query::Get => {
                let key = wire::key(&mut self.reader).await?;
                self.send_values(vec![key], waited).await?;
            }
            Query::MultiGet => {
                let keys = wire::keys(&mut self.reader).await?;
                self.send_values(keys, waited).await?;
            }
            Query::Check => {
                let keys = wire::keys(&mut self.reader).await?;
                let there = self.store.there(keys).await?;
                self.writer.write_u8(if there { READY } else { NOT_READY }).await?;
            }
            Query::NumKeys => {
                let answer = self.store.read(v1::StoreReadRequest::default()).await?;
                self.writer.write_u64_le(answer.keys).await?;
            }
            Query::QueueLen => {
                let queues = vec![wire::key(&mut self.reader).await?];
                let request = v1::StoreReadRequest { queues, ..Default::default() };
                let lengths = self.store.read(request).await?.lengths;
                self.writer.write_u64_le(lengths.first().copied().unwrap_or(0)).await?;
            }
            Query::ListKeys => self.list_keys().await?,
            Query::CancelWait => self.writer.write_u8(WAIT_CANCELED).await?,
            Query::Wait => return self.wait().await,
            Query::Barrier => return self.barrier().await,
            Query::QueuePop => return self.pop(waited).await,
            // These were handled earlier.
            Query::Validate
            | Query::Ping
            | Query::Set
            | Query::MultiSet
            | Query::Append
            | Query::QueuePush => {}
        }
        Ok(true)
    }

    async fn pair(&mut self) -> io::Result<v1::StorePair> {
        let key = wire::key(&mut self.reader).await?;
        let value = wire::value(&mut self.reader).await?;
        Ok(v1::StorePair { key, value })
    }

    /// Begins a change that the client does not wait for.
    async fn begin(&mut self, kind: v1::store_op::Kind) -> Result<(), ConnectionEnd> {
        let bytes = kind.encoded_len();
        self.unanswered.make_room(bytes).await?;
        self.unanswered.push(self.store.begin(kind).await, bytes);
        Ok(())
    }

    async fn change(
        &self,
        kind: v1::store_op::Kind,
    ) -> Result<v1::store_answer::Kind, ConnectionEnd> {
        match self.store.change(kind).await? {
            v1::store_answer::Kind::Refused(why) => Err(ConnectionEnd::Refused(why)),
            answer => Ok(answer),
        }
    }

    async fn number(&self, kind: v1::store_op::Kind) -> Result<i64, ConnectionEnd> {
        match self.change(kind).await? {
            v1::store_answer::Kind::Number(number) => Ok(number),
            other => Err(bad(format!("the cluster answered {other:?}")).into()),
        }
    }

    async fn compare_set(&mut self) -> Result<(), ConnectionEnd> {
        let key = wire::key(&mut self.reader).await?;
        let expected = wire::value(&mut self.reader).await?;
        let desired = wire::value(&mut self.reader).await?;
        let compare_set = v1::StoreCompareSet { key, expected, desired };
        let value = match self.change(v1::store_op::Kind::CompareSet(compare_set)).await? {
            v1::store_answer::Kind::Value(value) => value,
            _ => Bytes::new(),
        };
        self.write_values(&[value]).await
    }

    async fn send_values(
        &mut self,
        keys: Vec<Bytes>,
        waited: Option<WaitedFor>,
    ) -> Result<(), ConnectionEnd> {
        if let Some(kept) = waited.and_then(|waited| waited.values_of(&keys, Instant::now())) {
            return self.write_values(&kept).await;
        }
        let values = self.store.values(keys).await?;
        // A key without a value is empty, as in TCPStore.
        let values: Vec<_> = values.into_iter().map(Option::unwrap_or_default).collect();
        self.write_values(&values).await
    }

    async fn write_values(&mut self, values: &[Bytes]) -> Result<(), ConnectionEnd> {
        let mut out = BytesMut::new();
        values.iter().for_each(|value| wire::put_sized(&mut out, value));
        self.writer.write_all(&out).await?;
        Ok(())
    }

    async fn list_keys(&mut self) -> Result<(), ConnectionEnd> {
        let request = v1::StoreReadRequest { list_keys: true, ..Default::default() };
        let keys = self.store.read(request).await?.present;
        let mut out = BytesMut::new();
        out.put_u64_le(keys.len() as u64);
        keys.iter().for_each(|key| wire::put_sized(&mut out, key));
        self.writer.write_all(&out).await?;
        Ok(())
    }

    async fn wait(&mut self) -> Result<bool, ConnectionEnd> {
        let keys = wire::keys(&mut self.reader).await?;
        let (store, requested) = (self.store.clone(), keys.clone());
        let there = async move {
            let values = store.values_at_once(requested.clone()).await?;
            if let Some(values) = values.and_then(|values| values.into_iter().collect()) {
                return Ok(Some(values));
            }
            let waiting = Waiting::new(requested.into_iter().map(present).collect());
            store.wait_for_values(&waiting).await
        };
        let ended = self.until(there).await?;
        let since = Instant::now();
        if let Waited::Ready(values) = &ended {
            let kept = |values: &Vec<Bytes>| {
                values.iter().map(Bytes::len).sum::<usize>() <= KEPT_BYTES_MAX
            };
            let values = values.clone().filter(kept).unwrap_or_default();
            self.waited = Some(WaitedFor { keys, values, since });
        }
        self.send_wait_result(ended).await
    }

    /// One more participant has arrived; none passes before all have.
    async fn barrier(&mut self) -> Result<bool, ConnectionEnd> {
        let key = wire::key(&mut self.reader).await?;
        let size = self.reader.read_i64_le().await?;
        let arrived = v1::StoreAdd { key: key.clone(), delta: 1 };
        self.number(v1::store_op::Kind::Add(arrived)).await?;
        let all = v1::StoreAwaited { key, at_least: Some(size) };
        let ended = self.until_there(vec![all]).await?;
        self.send_wait_result(ended).await
    }

    async fn send_wait_result(&mut self, ended: Waited) -> Result<bool, ConnectionEnd> {
        match ended {
            Waited::Ready(_) => self.writer.write_u8(STOP_WAITING).await?,
            Waited::Canceled => self.writer.write_u8(WAIT_CANCELED).await?,
            Waited::Gone => return Ok(false),
        }
        Ok(true)
    }

    /// Waits, unless the client cancels the wait.
    async fn until_there(
        &mut self,
        awaited: Vec<v1::StoreAwaited>,
    ) -> Result<Waited, ConnectionEnd> {
        let (store, waiting) = (self.store.clone(), Waiting::new(awaited));
        self.until(async move { store.wait(&waiting).await.map(|()| None) }).await
    }

    async fn until(
        &mut self,
        wait: impl Future<Output = Result<Option<Vec<Bytes>>, ClientError>>,
    ) -> Result<Waited, ConnectionEnd> {
        tokio::pin!(wait);
        tokio::select! {
            biased;
            there = &mut wait => return Ok(Waited::Ready(there?)),
            next = self.reader.fill_buf() => match next?.first() {
                None => return Ok(Waited::Gone),
                Some(&byte) => {
                    if Query::of(byte)? != Query::CancelWait {
                        // The client sent its next request without waiting for this answer; this one ends first.
                        return Ok(Waited::Ready(wait.await?));
                    }
                }
            },
        }
        self.reader.consume(1);
        Ok(Waited::Canceled)
    }

    /// A client that waits for an element waits for the queue first, and then pops. If several wait, all learn of an
    /// element and one gets it; the others keep waiting here.
    async fn pop(&mut self, waited: Option<WaitedFor>) -> Result<bool, ConnectionEnd> {
        let queue = wire::key(&mut self.reader).await?;
        let for_it = waited.is_some_and(|waited| waited.keys == [queue.clone()]);
        let until = tokio::time::Instant::now() + POP_WITHIN;
        let first = loop {
            let popped = self.change(v1::store_op::Kind::Pop(queue.clone())).await?;
            if let v1::store_answer::Kind::Value(value) = popped {
                break Some(value);
            }
            // A key of that name with a value would end every wait at once.
            if !for_it || self.store.has_value(queue.clone()).await? {
                break None;
            }
            let more = self.until_there(vec![present(queue.clone())]);
            match tokio::time::timeout_at(until, more).await {
                Ok(Ok(Waited::Ready(_))) => {}
                Ok(Ok(_)) => return Ok(false),
                Ok(Err(error)) => return Err(error),
                Err(_) => break None,
            }
        };
        let mut out = BytesMut::new();
        match first {
            Some(value) => {
                out.put_i64_le(1);
                wire::put_sized(&mut out, &value);
            }
            None => out.put_i64_le(0),
        }
        self.writer.write_all(&out).await?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_long_after_a_wait_is_a_read_of_its_own() {
        let since = Instant::now();
        let keys = vec![Bytes::from_static(b"k")];
        let waited =
            || WaitedFor { keys: keys.clone(), values: vec![Bytes::from_static(b"v")], since };
        let soon = waited().values_of(&keys, since + KEPT_FOR);
        assert_eq!(soon, Some(vec![Bytes::from_static(b"v")]), "torch's get is one operation");
        let late = since + KEPT_FOR + Duration::from_millis(1);
        assert_eq!(waited().values_of(&keys, late), None);
        assert_eq!(waited().values_of(&[Bytes::from_static(b"j")], since), None);
        let without = WaitedFor { values: Vec::new(), ..waited() };
        assert_eq!(without.values_of(&keys, since), None);
    }
}

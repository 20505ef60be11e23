//! Owns: openraft's view of the durable log.
//!
//! Invariant: an entry is readable when `append` returns, and acknowledged only after an fsync that covers it. A vote
//! is durable before `save_vote` returns, in the same write-ahead log, so it is ordered with the entries.
//! Absent: the effects of an entry, and when the log is purged; see `machine` and `compaction`.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, stream};
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::{LogState, OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_storage::{RaftLog, StorageError, end_without_space};
use tokio::sync::oneshot;

use crate::codec::{
    decode_entry, decode_log_id, decode_vote, encode_entry, encode_log_id, encode_vote,
    entry_log_id,
};
use crate::state::entry_cache::{CacheBounds, EntryCache};
use crate::state::log_meter::LogMeter;
use crate::state::stores::StoresOpen;
use crate::types::{Entry, LogId, Types, Vote};

const VOTE: &str = "vote";
pub(crate) const COMMITTED: &str = "committed";
const SIZES: &str = "sizes";
const PROMISE: &str = "promise";

/// Bytes of entries read at once for replication or apply.
pub(crate) const READ_BYTES: usize = 1 << 20;

/// Bytes of decoded entries kept in memory: entries in progress, and a few that followers may ask for again.
const CACHE: CacheBounds = CacheBounds { all: 64 << 20, settled: 2 << 20 };

/// The log as openraft sees it. Clones share it.
#[derive(Clone)]
pub(crate) struct LogStore {
    log: RaftLog,
    cache: Arc<Mutex<EntryCache>>,
    vote: Arc<Mutex<Option<Vote>>>,
    meter: Arc<Mutex<LogMeter>>,
    // Last: dropped when the log is closed.
    _open: Arc<StoresOpen>,
}

pub(crate) fn io_error(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::other(error)
}

/// The error of a failed write of the log or of a snapshot. On a full disk the process ends here: consensus would end
/// it later without the reason.
pub(crate) fn write_error(error: StorageError) -> io::Error {
    if error.is_no_space() {
        end_without_space(&error);
    }
    io_error(error)
}

impl LogStore {
    /// Wraps an open log and reads its vote.
    pub(crate) fn new(
        log: RaftLog,
        open: Arc<StoresOpen>,
        keep_bytes: u64,
    ) -> Result<Self, io::Error> {
        let vote = match log.meta(VOTE).map_err(io_error)? {
            Some(bytes) => Some(decode_vote(Bytes::from(bytes))?),
            None => None,
        };
        if seeded(Bug::TailDroppedOnStart)
            && let Some((last, _)) = log.bounds().last
        {
            let committed = log.meta(COMMITTED).map_err(io_error)?;
            let committed = committed.map(|id| decode_log_id(Bytes::from(id))).transpose()?;
            let committed_index = committed.map_or(last, |id| id.index());
            log.truncate_after(Some(committed_index.min(last))).map_err(io_error)?;
        }
        let mut meter = match log.meta(SIZES).map_err(io_error)? {
            Some(bytes) => LogMeter::decode(keep_bytes, &bytes),
            None => LogMeter::new(keep_bytes),
        };
        // Truncations and purges do not store the sizes again.
        let bounds = log.bounds();
        meter.truncated(bounds.last.map_or(0, |(last, _)| last + 1));
        meter.purged(bounds.purged.map_or(0, |(last, _)| last));
        Ok(Self {
            log,
            meter: Arc::new(Mutex::new(meter)),
            cache: Arc::new(Mutex::new(EntryCache::new(CACHE))),
            vote: Arc::new(Mutex::new(vote)),
            _open: open,
        })
    }

    /// True if neither a vote nor an entry was ever written.
    pub(crate) fn is_pristine(&self) -> bool {
        let bounds = self.log.bounds();
        bounds.purged.is_none() && bounds.last.is_none() && self.vote.lock().is_none()
    }

    /// The log below, for its counters.
    pub(crate) fn log(&self) -> &RaftLog {
        &self.log
    }

    /// The last purged and the last log id; the latter falls back to the former.
    pub(crate) fn state(&self) -> Result<(Option<LogId>, Option<LogId>), io::Error> {
        let bounds = self.log.bounds();
        let purged = match bounds.purged {
            Some((_, mark)) => Some(decode_log_id(Bytes::from(mark))?),
            None => None,
        };
        let last = match bounds.last {
            Some((_, bytes)) => Some(entry_log_id(&bytes)?),
            None => purged,
        };
        Ok((purged, last))
    }

    async fn read(&self, from: u64, end: u64, max_bytes: usize) -> Result<Vec<Entry>, io::Error> {
        if from >= end {
            return Ok(Vec::new());
        }
        if let Some(found) = self.cache.lock().read(from, end, max_bytes) {
            return Ok(found);
        }
        let log = self.log.clone();
        tokio::task::spawn_blocking(move || {
            let records = log.read(from, end, max_bytes).map_err(io_error)?;
            records.into_iter().map(|(index, bytes)| decode_at(index, bytes)).collect()
        })
        .await
        .map_err(io_error)?
    }

    /// The promise that an earlier process of this member may have made to leaders; see `lease`.
    pub(crate) fn promised(&self) -> Result<Option<Duration>, io::Error> {
        let Some(bytes) = self.log.meta(PROMISE).map_err(io_error)? else { return Ok(None) };
        let millis = <[u8; 8]>::try_from(bytes).map_err(|bytes| {
            let text = format!("a promise of {} bytes", bytes.len());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        Ok(Some(Duration::from_millis(u64::from_le_bytes(millis))))
    }

    /// Makes this member's promise durable before it returns.
    pub(crate) async fn record_promise(&self, lease: Duration) -> Result<(), io::Error> {
        let millis = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        self.put_durable(PROMISE, &millis.to_le_bytes()).await
    }

    async fn put_durable(&self, key: &str, value: &[u8]) -> Result<(), io::Error> {
        let (done, synced) = oneshot::channel();
        self.log
            .put_meta_durable(key, value, Box::new(|result| drop(done.send(result))))
            .map_err(write_error)?;
        synced.await.map_err(io_error)?
    }

    /// The log's size, and its distribution over indexes.
    pub(crate) fn meter(&self) -> LogMeter {
        self.meter.lock().clone()
    }

    fn measure(&self, first: u64, records: &[Vec<u8>]) -> Result<(), io::Error> {
        let mut meter = self.meter.lock();
        let mut marked = false;
        for (index, record) in (first..).zip(records) {
            marked |= meter.appended(index, record.len() as u64);
        }
        // Part of the same write-ahead log; a mark that is lost with its entries is no loss.
        if marked { self.log.put_meta(SIZES, &meter.encode()).map_err(write_error) } else { Ok(()) }
    }

    /// A range as its first index and the one after its last.
    fn limits<R: RangeBounds<u64>>(range: &R) -> (u64, u64) {
        let from = match range.start_bound() {
            Bound::Included(at) => *at,
            Bound::Excluded(at) => at.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(at) => at.saturating_add(1),
            Bound::Excluded(at) => *at,
            Bound::Unbounded => u64::MAX,
        };
        (from, end)
    }
}

fn decode_at(index: u64, bytes: Vec<u8>) -> Result<Entry, io::Error> {
    let entry = decode_entry(Bytes::from(bytes))?;
    if entry.index() != index {
        let text = format!("log record {index} holds entry {}", entry.log_id());
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    Ok(entry)
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry>, io::Error> {
        let (from, end) = Self::limits(&range);
        self.read(from, end, usize::MAX).await
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry>, io::Error> {
        self.read(start, end, READ_BYTES).await
    }

    async fn entries_stream<R>(
        &mut self,
        range: R,
    ) -> impl Stream<Item = Result<Entry, io::Error>> + OptionalSend
    where
        R: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, end) = Self::limits(&range);
        let store = self.clone();
        let start = (store, from, Vec::new().into_iter());
        stream::try_unfold(start, move |(store, mut next, mut chunk)| async move {
            if let Some(entry) = chunk.next() {
                return Ok(Some((entry, (store, next, chunk))));
            }
            let fresh = store.read(next, end, READ_BYTES).await?;
            next = fresh.last().map_or(end, |entry| entry.index() + 1);
            let mut fresh = fresh.into_iter();
            Ok(fresh.next().map(|entry| (entry, (store, next, fresh))))
        })
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(*self.vote.lock())
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let (last_purged_log_id, last_log_id) = self.state()?;
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        if seeded(Bug::VoteNotPersisted) {
            *self.vote.lock() = Some(*vote);
            return Ok(());
        }
        self.put_durable(VOTE, &encode_vote(vote)).await?;
        *self.vote.lock() = Some(*vote);
        Ok(())
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> Result<(), io::Error> {
        match committed {
            Some(id) => {
                self.cache.lock().settle(id.index());
                self.log.put_meta(COMMITTED, &encode_log_id(&id)).map_err(write_error)
            }
            None => Ok(()),
        }
    }

    async fn read_committed(&mut self) -> Result<Option<LogId>, io::Error> {
        match self.log.meta(COMMITTED).map_err(io_error)? {
            Some(bytes) => Ok(Some(decode_log_id(Bytes::from(bytes))?)),
            None => Ok(None),
        }
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut entries: Vec<Entry> = entries.into_iter().collect();
        if seeded(Bug::LogConflictKept)
            && let Some((last, _)) = self.log.bounds().last
        {
            entries.retain(|entry| entry.index() > last);
        }
        if let Some(first) = entries.first() {
            let records: Vec<Vec<u8>> = entries.iter().map(encode_entry).collect();
            self.log.append(first.index(), &records).map_err(write_error)?;
            self.measure(first.index(), &records)?;
            let mut cache = self.cache.lock();
            entries.into_iter().for_each(|entry| cache.push(entry));
        }
        self.log.sync(Box::new(move |result| callback.io_completed(result)));
        Ok(())
    }

    async fn truncate_after(&mut self, last_kept: Option<LogId>) -> Result<(), io::Error> {
        if seeded(Bug::LogConflictKept) {
            return Ok(());
        }
        let last_kept = last_kept.map(|id| id.index());
        self.cache.lock().truncate(last_kept.map_or(0, |index| index + 1));
        self.meter.lock().truncated(last_kept.map_or(0, |index| index + 1));
        self.log.truncate_after(last_kept).map_err(write_error)
    }

    async fn purge(&mut self, up_to: LogId) -> Result<(), io::Error> {
        self.cache.lock().purge(up_to.index());
        self.meter.lock().purged(up_to.index());
        self.log.purge(up_to.index(), &encode_log_id(&up_to)).map_err(write_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::stores::Stores;
    use crate::types::log_id;
    use openraft::EntryPayload;

    fn blanks(last: u64) -> Vec<Vec<u8>> {
        let blank = |index| encode_entry(&Entry::new(log_id(1, index), EntryPayload::Blank));
        (1..=last).map(blank).collect()
    }

    #[test]
    fn sizes_that_were_stored_before_a_purge_do_not_count_what_it_removed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let stores = Stores::open(dir.path()).expect("stores");
        stores.log.append(1, &blanks(9)).expect("appended");
        let mut meter = LogMeter::new(64);
        (1..=9).for_each(|index| assert!(meter.appended(index, 10)));
        stores.log.put_meta(SIZES, &meter.encode()).expect("written");
        stores.log.purge(6, &encode_log_id(&log_id(1, 6))).expect("purged");
        let store = LogStore::new(stores.log, stores.open, 64).expect("a log");
        assert_eq!((store.meter().bytes(), store.meter().bytes_after(7)), (30, 20));
    }

    #[test]
    fn sizes_that_were_stored_before_a_truncation_do_not_count_what_it_removed() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let stores = Stores::open(dir.path()).expect("stores");
        stores.log.append(1, &blanks(4)).expect("appended");
        let mut meter = LogMeter::new(64);
        (1..=9).for_each(|index| assert!(meter.appended(index, 10)));
        stores.log.put_meta(SIZES, &meter.encode()).expect("written");
        let store = LogStore::new(stores.log, stores.open, 64).expect("a log");
        assert_eq!((store.meter().bytes(), store.meter().bytes_after(2)), (40, 20));
        let mut next = store.meter();
        next.appended(5, 10);
        let again = LogMeter::decode(64, &next.encode());
        assert_eq!(again, next, "ascending, so that the next start accepts it");
    }
}

//! Owns: which changes and which reads of a shared store are combined into one request.
//!
//! Invariant: a request stays within the cluster's bounds unless a single part exceeds them. Parts are applied in
//! order, and a read that starts after an answer is sent after it.
//! Absent: the queues; see `batches`.

use bytes::Bytes;
use rollout_proto::{Client, ClientError, STORE_REQUEST_BYTES_MAX, v1};
use v1::store_answer::Kind as AnswerKind;
use v1::store_op::Kind as Op;

use super::batches::Exchange;
use super::calls;
use super::sessions::Sessions;
use super::wait_room::WaitRoom;

/// Operations in one request: the cluster's limit.
const OPS_MAX: usize = 1024;
/// How many of them may be answered with a value.
const VALUE_OPS_MAX: usize = 8;
/// Keys in one read: the cluster's limit.
const KEYS_MAX: usize = 4096;
/// Maximum overhead of a pair.
const PAIR_BYTES: usize = 32;
/// Bytes of operations that share a request. A larger operation is sent alone, and the cluster accepts or refuses it.
const SHARED_BYTES: usize = STORE_REQUEST_BYTES_MAX / 4;

/// Whether the operation may enlarge the store. A cluster whose disk is full accepts only others.
pub(crate) fn grows(op: &Op) -> bool {
    !matches!(op, Op::Delete(_) | Op::Pop(_))
}

/// Changes, in order, with one request in flight at a time. Operations that may enlarge the store and the others have
/// separate queues, so that freeing space never waits for an operation that needs space.
#[derive(Clone)]
pub(crate) struct Changes {
    pub(crate) client: Client,
    pub(crate) sessions: Sessions,
    pub(crate) name: v1::StoreName,
}

fn pair_bytes(pair: &v1::StorePair) -> usize {
    pair.key.len() + pair.value.len() + PAIR_BYTES
}

fn op_bytes(op: &Op) -> usize {
    match op {
        Op::Set(set) => set.pairs.iter().map(pair_bytes).sum(),
        Op::Add(add) => add.key.len() + PAIR_BYTES,
        Op::CompareSet(c) => c.key.len() + c.expected.len() + c.desired.len() + PAIR_BYTES,
        Op::Append(pair) | Op::Push(pair) => pair_bytes(pair),
        Op::Delete(key) | Op::Pop(key) => key.len() + PAIR_BYTES,
    }
}

fn answers_value(op: &Op) -> bool {
    matches!(op, Op::CompareSet(_) | Op::Pop(_))
}

impl Exchange for Changes {
    /// Operations that one caller requests together.
    type Part = Vec<Op>;
    type Answer = Vec<AnswerKind>;
    // Two in flight would change the order.
    const IN_FLIGHT: usize = 1;
    const LOOKS: bool = false;

    fn bytes(part: &Vec<Op>) -> usize {
        part.iter().map(op_bytes).sum()
    }

    fn fitting<'a>(parts: impl Iterator<Item = &'a Vec<Op>>) -> usize {
        let (mut count, mut ops, mut values, mut bytes) = (0, 0, 0, 0);
        for part in parts {
            ops += part.len();
            values += part.iter().filter(|op| answers_value(op)).count();
            bytes += Self::bytes(part);
            let fits = ops <= OPS_MAX && values <= VALUE_OPS_MAX && bytes <= SHARED_BYTES;
            if count > 0 && !fits {
                break;
            }
            count += 1;
        }
        count
    }

    async fn send(&self, parts: Vec<Vec<Op>>) -> Result<Vec<Vec<AnswerKind>>, ClientError> {
        let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
        let ops = parts.into_iter().flatten().map(|op| v1::StoreOp { kind: Some(op) }).collect();
        let request = v1::StoreApplyRequest { request: None, store: Some(self.name.clone()), ops };
        let changed = self.sessions.change_until_answered(|id| {
            let request = v1::StoreApplyRequest { request: Some(id), ..request.clone() };
            calls::apply(&self.client, request)
        });
        let mut answers = changed.await?.answers.into_iter();
        let nothing = || AnswerKind::Nothing(true);
        let each = |_| answers.next().and_then(|answer| answer.kind).unwrap_or_else(nothing);
        let mut each = each;
        Ok(counts.into_iter().map(|count| (0..count).map(&mut each).collect()).collect())
    }
}

/// Reads of values.
#[derive(Clone)]
pub(crate) struct Gets {
    pub(crate) client: Client,
    pub(crate) name: v1::StoreName,
}

impl Exchange for Gets {
    /// The keys that one caller reads.
    type Part = Vec<Bytes>;
    /// Their values at one moment, or nothing if they are too many for one answer.
    type Answer = Option<Vec<Option<Bytes>>>;
    const IN_FLIGHT: usize = 1;
    const LOOKS: bool = true;

    fn bytes(part: &Vec<Bytes>) -> usize {
        part.iter().map(|key| key.len() + PAIR_BYTES).sum()
    }

    fn fitting<'a>(parts: impl Iterator<Item = &'a Vec<Bytes>>) -> usize {
        let (mut count, mut keys) = (0, 0);
        for part in parts {
            keys += part.len();
            if count > 0 && keys > KEYS_MAX {
                break;
            }
            count += 1;
        }
        count
    }

    async fn send(&self, parts: Vec<Vec<Bytes>>) -> Result<Vec<Self::Answer>, ClientError> {
        let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
        let keys = parts.into_iter().flatten().collect();
        let store = Some(self.name.clone());
        let request = v1::StoreReadRequest { store, keys, ..Default::default() };
        let mut values =
            calls::read(&self.client, request).await?.values.into_iter().map(calls::value);
        let each = |count| {
            let own: Vec<_> = values.by_ref().take(count).collect();
            (own.len() == count).then_some(own)
        };
        Ok(counts.into_iter().map(each).collect())
    }
}

/// A wait for one key or queue. The leader registers each caller's wait when it arrives, so that the wait sees a key
/// that is set and immediately deleted. Callers that arrive together share a request, and so do those beyond
/// `IN_FLIGHT`.
#[derive(Clone)]
pub(crate) struct WaitForOne {
    pub(crate) client: Client,
    pub(crate) room: WaitRoom,
    pub(crate) request: v1::StoreWaitRequest,
}

impl Exchange for WaitForOne {
    type Part = ();
    /// The values at the end of the wait, if the request asks for them.
    type Answer = Vec<Option<Bytes>>;
    const IN_FLIGHT: usize = 64;
    const LOOKS: bool = true;

    fn bytes((): &()) -> usize {
        0
    }

    fn fitting<'a>(parts: impl Iterator<Item = &'a ()>) -> usize {
        parts.count()
    }

    async fn send(&self, parts: Vec<()>) -> Result<Vec<Self::Answer>, ClientError> {
        loop {
            let answer = calls::wait((&self.client, &self.room), self.request.clone()).await?;
            if answer.ready {
                let values = answer.values.into_iter().map(calls::value).collect();
                return Ok(vec![values; parts.len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(bytes: usize) -> Vec<Op> {
        let pair = v1::StorePair { key: Bytes::from_static(b"k"), value: vec![0; bytes].into() };
        vec![Op::Set(v1::StoreSet { pairs: vec![pair] })]
    }

    #[test]
    fn a_request_is_within_the_bounds_of_the_cluster_or_has_one_part() {
        let small: Vec<_> = (0..3000).map(|_| set(1)).collect();
        assert_eq!(Changes::fitting(small.iter()), OPS_MAX);
        let pops: Vec<_> = (0..20).map(|_| vec![Op::Pop(Bytes::from_static(b"q"))]).collect();
        assert_eq!(Changes::fitting(pops.iter()), VALUE_OPS_MAX);
        let large: Vec<_> = (0..3).map(|_| set(600 << 10)).collect();
        assert_eq!(Changes::fitting(large.iter()), 1);
        let over = [set(8 << 20), set(1)];
        assert_eq!(Changes::fitting(over.iter()), 1, "the cluster refuses it, and nothing else");
        assert_eq!(Changes::fitting([].iter()), 0);
        let gets = [vec![Bytes::new(); 4000], vec![Bytes::new(); 96], vec![Bytes::new()]];
        assert_eq!(Gets::fitting(gets.iter()), 2);
    }
}

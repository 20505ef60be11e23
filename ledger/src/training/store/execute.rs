//! The operations on a store, with the meaning that `torch.distributed.Store` gives them.
//!
//! *Invariant:* a refused operation has changed nothing. The answer to a request fits a message.

use super::{Stores, weight};
use crate::kernel::id::StoreNo;
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, StoreAnswer};
use crate::machine::command::StoreOp;
use crate::machine::seeded::{Bug, seeded};

/// The number at the beginning of a value, as C++ reads it: white space, a sign and digits; the rest is ignored.
pub(super) fn number(value: &[u8]) -> Option<i64> {
    let value = value.trim_ascii_start();
    let (negative, digits) = match value.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, value),
    };
    let end = digits.iter().position(|b| !b.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 {
        return None;
    }
    digits[..end].iter().try_fold(0i64, |sum, digit| {
        let digit = i64::from(digit - b'0');
        let sum = sum.checked_mul(10)?;
        if negative { sum.checked_sub(digit) } else { sum.checked_add(digit) }
    })
}

fn check_key(key: &[u8]) -> Result<(), Rejection> {
    match key.len() <= limits::STORE_KEY_BYTES_MAX {
        true => Ok(()),
        false => Err(limit("bytes of a store's key", limits::STORE_KEY_BYTES_MAX as u64)),
    }
}

fn check_pair(key: &[u8], value: &[u8]) -> Result<(), Rejection> {
    check_key(key)?;
    match value.len() <= limits::STORE_VALUE_BYTES_MAX {
        true => Ok(()),
        false => Err(limit("bytes of a store's value", limits::STORE_VALUE_BYTES_MAX as u64)),
    }
}

/// The pairs by key; for a duplicate key, the last one.
fn last_of_each_key(mut pairs: Vec<(Vec<u8>, Vec<u8>)>) -> Vec<(Vec<u8>, Vec<u8>)> {
    // The sort is stable: the later of two pairs stays after the other.
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    pairs.dedup_by(|later, kept| {
        let same = later.0 == kept.0;
        if same {
            std::mem::swap(&mut later.1, &mut kept.1);
        }
        same
    });
    pairs
}

/// Whether its remembered answer contains a value, however small the request was.
fn answers_value(op: &StoreOp) -> bool {
    match op {
        StoreOp::CompareSet { .. } | StoreOp::Pop { .. } => true,
        StoreOp::Set { .. }
        | StoreOp::Add { .. }
        | StoreOp::Append { .. }
        | StoreOp::Delete { .. }
        | StoreOp::Push { .. } => false,
    }
}

fn limit(what: &str, max: u64) -> Rejection {
    Rejection::Limit { what: what.into(), max }
}

/// The bounds of a store that depend on the cluster's version.
#[derive(Clone, Copy)]
struct Bounds {
    entries: u64,
}

impl Bounds {
    fn of_version(version: u32) -> Self {
        match version >= limits::FLEET_VERSION {
            true => Self { entries: limits::STORE_ENTRIES_MAX },
            false => Self { entries: limits::STORE_ENTRIES_BEFORE_MAX },
        }
    }
}

impl Stores {
    /// Refuses a request with too many operations.
    pub(crate) fn check_request(ops: &[StoreOp]) -> Result<(), Rejection> {
        if ops.len() > limits::STORE_OPS_MAX {
            return Err(limit("store operations in a request", limits::STORE_OPS_MAX as u64));
        }
        let values = ops.iter().filter(|op| answers_value(op)).count();
        if values > limits::STORE_VALUE_OPS_MAX {
            let what = "store operations in a request that are answered with values";
            return Err(limit(what, limits::STORE_VALUE_OPS_MAX as u64));
        }
        Ok(())
    }

    /// Executes operations on a store, each with its own answer. The cluster's version decides how many entries a store
    /// may have.
    pub(crate) fn execute(
        &mut self,
        no: StoreNo,
        ops: Vec<StoreOp>,
        version: u32,
    ) -> Vec<StoreAnswer> {
        self.changes += 1;
        let bounds = Bounds::of_version(version);
        let answer = |op| self.answer(no, op, bounds).unwrap_or_else(StoreAnswer::Refused);
        ops.into_iter().map(answer).collect()
    }

    fn answer(
        &mut self,
        no: StoreNo,
        op: StoreOp,
        bounds: Bounds,
    ) -> Result<StoreAnswer, Rejection> {
        match op {
            StoreOp::Set { pairs } => self.set(no, pairs, bounds),
            StoreOp::Add { key, delta } => {
                let old = self.value(no, &key);
                let old = match old {
                    None => 0,
                    Some(value) => number(value)
                        .ok_or_else(|| Rejection::Invalid("the key's value is no number".into()))?,
                };
                let sum = old
                    .checked_add(delta)
                    .ok_or_else(|| Rejection::Invalid("the sum is out of range".into()))?;
                self.put(no, key, sum.to_string().into_bytes(), bounds)?;
                Ok(StoreAnswer::Number(sum))
            }
            StoreOp::CompareSet { key, expected, desired } => {
                check_pair(&key, &desired)?;
                check_pair(&key, &expected)?;
                let answer = match self.value(no, &key) {
                    _ if seeded(Bug::CompareSetUnchecked) => {
                        self.put(no, key, desired.clone(), bounds)?;
                        desired
                    }
                    // A missing key is not set. The answer is the expected value.
                    None if !expected.is_empty() => expected,
                    Some(current) if current != expected => current.to_vec(),
                    _ => {
                        self.put(no, key, desired.clone(), bounds)?;
                        desired
                    }
                };
                Ok(StoreAnswer::Value(Some(answer)))
            }
            StoreOp::Append { key, value } => {
                let mut whole = self.value(no, &key).unwrap_or_default().to_vec();
                whole.extend(value);
                let bytes = whole.len() as i64;
                self.put(no, key, whole, bounds)?;
                Ok(StoreAnswer::Number(bytes))
            }
            StoreOp::Delete { key } => Ok(self.delete(no, key)),
            StoreOp::Push { queue, value } => self.push(no, (queue, value), bounds),
            StoreOp::Pop { queue } => Ok(self.pop(no, queue)),
        }
    }

    fn value(&self, no: StoreNo, key: &[u8]) -> Option<&[u8]> {
        self.by_no.get(&no)?.values.get(key).map(Vec::as_slice)
    }

    /// Sets all of the pairs or none; for a duplicate key, the last one counts.
    fn set(
        &mut self,
        no: StoreNo,
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
        bounds: Bounds,
    ) -> Result<StoreAnswer, Rejection> {
        if pairs.len() > limits::STORE_PAIRS_MAX {
            return Err(limit("pairs set at once", limits::STORE_PAIRS_MAX as u64));
        }
        for (key, value) in &pairs {
            check_pair(key, value)?;
        }
        let last = last_of_each_key(pairs);
        let (mut entries, mut more, mut less) = (0, 0, 0);
        for (key, value) in &last {
            more += weight(key, value);
            match self.value(no, key) {
                Some(old) => less += weight(key, old),
                None => entries += 1,
            }
        }
        self.check_room(no, (entries, more.saturating_sub(less)), bounds)?;
        for (key, value) in last {
            self.insert(no, key, value);
        }
        Ok(StoreAnswer::Done)
    }

    /// Refuses what would exceed a store's bounds, or those of all stores.
    fn check_room(
        &self,
        no: StoreNo,
        (entries, bytes): (u64, u64),
        bounds: Bounds,
    ) -> Result<(), Rejection> {
        let Some(store) = self.by_no.get(&no) else { return Ok(()) };
        if entries > 0 && store.entries + entries > bounds.entries {
            return Err(limit("entries of a store", bounds.entries));
        }
        if bytes > 0 && store.bytes + bytes > limits::STORE_BYTES_MAX {
            return Err(limit("bytes of a store", limits::STORE_BYTES_MAX));
        }
        if bytes > 0 && self.bytes + bytes > limits::STORES_BYTES_MAX {
            return Err(limit("bytes of all stores", limits::STORES_BYTES_MAX));
        }
        Ok(())
    }

    /// Sets a key, within all bounds.
    fn put(
        &mut self,
        no: StoreNo,
        key: Vec<u8>,
        value: Vec<u8>,
        bounds: Bounds,
    ) -> Result<(), Rejection> {
        check_pair(&key, &value)?;
        let old = self.value(no, &key).map(|old| weight(&key, old));
        let new = weight(&key, &value);
        let more = (u64::from(old.is_none()), new.saturating_sub(old.unwrap_or(0)));
        self.check_room(no, more, bounds)?;
        self.insert(no, key, value);
        Ok(())
    }

    /// Sets a key, after [`Stores::check_room`] found room for it.
    fn insert(&mut self, no: StoreNo, key: Vec<u8>, value: Vec<u8>) {
        let Some(store) = self.by_no.get_mut(&no) else { return };
        let (key_bytes, new) = (key.len() as u64, weight(&key, &value));
        self.dirty.values.insert((no, key.clone()));
        let old = store.values.insert(key, value).map(|old| key_bytes + old.len() as u64);
        store.entries += u64::from(old.is_none());
        store.bytes = store.bytes + new - old.unwrap_or(0);
        self.bytes = self.bytes + new - old.unwrap_or(0);
    }

    fn delete(&mut self, no: StoreNo, key: Vec<u8>) -> StoreAnswer {
        let Some(store) = self.by_no.get_mut(&no) else { return StoreAnswer::Number(0) };
        let Some(old) = store.values.remove(&key) else { return StoreAnswer::Number(0) };
        store.entries -= 1;
        store.bytes -= weight(&key, &old);
        self.bytes -= weight(&key, &old);
        self.dirty.values.insert((no, key));
        StoreAnswer::Number(1)
    }

    fn push(
        &mut self,
        no: StoreNo,
        (queue, value): (Vec<u8>, Vec<u8>),
        bounds: Bounds,
    ) -> Result<StoreAnswer, Rejection> {
        check_pair(&queue, &value)?;
        let bytes = weight(&queue, &value);
        self.check_room(no, (1, bytes), bounds)?;
        let Some(store) = self.by_no.get_mut(&no) else { return Ok(StoreAnswer::Number(0)) };
        store.entries += 1;
        store.bytes += bytes;
        self.bytes += bytes;
        self.dirty.queues.insert((no, queue.clone()));
        let all = store.queues.entry(queue).or_default();
        all.push_back(value);
        Ok(StoreAnswer::Number(all.len() as i64))
    }

    fn pop(&mut self, no: StoreNo, queue: Vec<u8>) -> StoreAnswer {
        let Some(store) = self.by_no.get_mut(&no) else { return StoreAnswer::Value(None) };
        let Some(all) = store.queues.get_mut(&queue) else { return StoreAnswer::Value(None) };
        let first = all.pop_front();
        if all.is_empty() {
            store.queues.remove(&queue);
        }
        if let Some(value) = &first {
            store.entries -= 1;
            store.bytes -= weight(&queue, value);
            self.bytes -= weight(&queue, value);
            self.dirty.queues.insert((no, queue));
        }
        StoreAnswer::Value(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::id::LedgerMs;
    use crate::machine::command::StoreName;

    const BOUNDS: Bounds = Bounds { entries: limits::STORE_ENTRIES_BEFORE_MAX };

    fn stores() -> (Stores, StoreNo) {
        let mut stores = Stores::default();
        let name = StoreName { namespace: "default".into(), job: "job".into(), round: 0 };
        let no = stores.use_or_make(name, LedgerMs(0), &mut 0).unwrap();
        (stores, no)
    }

    #[test]
    fn a_number_is_read_as_stoll_reads_it() {
        for (text, is) in [
            ("0", Some(0)),
            ("-12", Some(-12)),
            (" +7x", Some(7)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("", None),
            ("-", None),
            ("x1", None),
        ] {
            assert_eq!(number(text.as_bytes()), is, "{text}");
        }
    }

    #[test]
    fn the_last_value_of_a_key_that_is_set_several_times_at_once_counts() {
        let pairs = ["b1", "a1", "b2", "c1", "b3"].map(|kv| pair(&kv[..1], kv.as_bytes()));
        let kept = ["a1", "b3", "c1"].map(|kv| pair(&kv[..1], kv.as_bytes()));
        assert_eq!(last_of_each_key(pairs.to_vec()), kept);
    }

    fn pair(key: &str, value: &[u8]) -> (Vec<u8>, Vec<u8>) {
        (key.as_bytes().to_vec(), value.to_vec())
    }

    /// Sets keys to this value until there is no room for another; returns how many, and the refusal.
    fn fill(stores: &mut Stores, no: StoreNo, value: &[u8]) -> (u64, Rejection) {
        let mut set = 0u64;
        loop {
            match stores.set(no, vec![pair(&set.to_string(), value)], BOUNDS) {
                Ok(_) => set += 1,
                Err(why) => return (set, why),
            }
        }
    }

    #[test]
    fn over_a_bound_nothing_changes() {
        let (mut stores, no) = stores();
        let big = vec![0; limits::STORE_VALUE_BYTES_MAX];
        let (set, refused) = fill(&mut stores, no, &big);
        assert!(matches!(refused, Rejection::Limit { .. }), "{refused}");
        assert_eq!(set, limits::STORE_BYTES_MAX / limits::STORE_VALUE_BYTES_MAX as u64 - 1);
        stores.check().unwrap();
        // Changes that do not grow the store are still accepted, and those that shrink it.
        stores.set(no, vec![(b"0".to_vec(), big.clone())], BOUNDS).unwrap();
        stores.delete(no, b"0".to_vec());
        let two = vec![(b"x".to_vec(), big.clone()), (b"y".to_vec(), big)];
        stores.set(no, two, BOUNDS).unwrap_err();
        assert_eq!(stores.value(no, b"x"), None, "all of the pairs or none");
        stores.check().unwrap();
    }

    #[test]
    fn a_full_store_sets_all_pairs_or_none_even_if_a_key_occurs_twice() {
        let (mut stores, no) = stores();
        let big = vec![0; limits::STORE_VALUE_BYTES_MAX];
        fill(&mut stores, no, &big);
        let before = stores.by_no[&no].clone();
        // A key counts once, however often it is set: there is room for one of the two others.
        let repeated = vec![pair("0", b""), pair("0", b""), pair("x", &big), pair("y", &big)];
        stores.set(no, repeated, BOUNDS).unwrap_err();
        assert_eq!(stores.by_no[&no].values, before.values, "all of the pairs or none");
        // The last one counts, and whether all have room does not depend on their order.
        let swapped = vec![pair("a", b"1"), pair("x", &big), pair("0", &big), pair("0", b"")];
        stores.set(no, swapped, BOUNDS).unwrap();
        assert_eq!(stores.value(no, b"0"), Some(&b""[..]));
        assert_eq!(stores.value(no, b"a"), Some(&b"1"[..]));
        stores.check().unwrap();
    }
}

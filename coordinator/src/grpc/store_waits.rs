//! Waits for keys of shared stores. A request that changes a key reads the key once for all waits for it.
//!
//! *Invariant:* no wake-up is lost: a wait is registered before it reads, and a change reads for the registered waits
//! after it is applied. If the caller of a change is gone before the change is applied, it wakes no waits; they find it
//! in their own periodic reads. A member that no longer leads, or that no majority confirms, ends its waits. The work
//! of a change grows with the keys that it changes and the waits that it ends, not with the waits that continue.
//!
//! Absent: any trace of a wait in the ledger. A client repeats a wait at the next leader.

use super::Shared;
use crate::leader::fair_room::{FairRoom, Permit};
use crate::leader::ledger_read::ReadLedger;
use crate::observe::log_position;
use bytes::Bytes;
use parking_lot::Mutex;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::{Ledger, StoreName};
use rollout_proto::{ErrorCode, Identity, RpcError, v1};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The longest that a wait is held before it is answered without a result.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Most waits held at once.
const WAITS_MAX: usize = 16_384;
/// Most bytes of awaited keys, including [`KEY_BYTES`] for each.
const BYTES_MAX: usize = 256 << 20;
/// The memory of a key with a single wait, besides its own bytes: its places in the request and in the registry, the
/// first node of a map of waits, and its position among the keys that were seen.
const KEY_BYTES: usize = 768;
/// How often a wait reads the ledger by itself, and checks that this member still leads.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A wait for several keys is answered at most this long after the first was seen.
const SEEN_TOLD_WITHIN: Duration = Duration::from_millis(200);

/// Whether the awaited key is there.
pub(super) fn is_there(ledger: &Ledger, name: &StoreName, awaited: &v1::StoreAwaited) -> bool {
    let Some(store) = ledger.store(name) else { return false };
    match awaited.at_least {
        None => store.has(&awaited.key),
        Some(least) => store.number(&awaited.key).is_some_and(|n| n >= least),
    }
}

/// Which of several awaited keys were there at some time since the wait began. As in TCPStore, a key counts once it
/// was seen, even if it is removed later.
#[derive(Default)]
struct SeenKeys {
    positions: Mutex<BTreeSet<u32>>,
    first: Notify,
    all: Notify,
    awaited: usize,
}

impl SeenKeys {
    fn record(&self, position: u32) {
        let mut at = self.positions.lock();
        if at.insert(position) {
            self.first.notify_one();
        }
        if at.len() == self.awaited {
            self.all.notify_one();
        }
    }

    /// Checks the keys that were not seen yet. Returns whether all have been seen.
    fn look(
        &self,
        awaited: &[v1::StoreAwaited],
        there: impl Fn(&v1::StoreAwaited) -> bool,
    ) -> bool {
        for (position, one) in (0..).zip(awaited) {
            if !self.positions.lock().contains(&position) && there(one) {
                self.record(position);
            }
        }
        self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.positions.lock().len() == self.awaited
    }

    /// Returns shortly after the first key was seen, so that the waiting client knows of it if this leader fails.
    async fn answer_due(&self) {
        self.first.notified().await;
        tokio::time::sleep(SEEN_TOLD_WITHIN).await;
    }
}

/// The waits for one key, by the number of the wait and the key's position in it.
#[derive(Default)]
struct Awaiting {
    present: BTreeMap<(u64, u32), Arc<SeenKeys>>,
    at_least: BTreeMap<(i64, u64, u32), Arc<SeenKeys>>,
}

impl Awaiting {
    /// Marks the key as seen for the waits that its present value satisfies.
    fn look(&mut self, present: bool, number: Option<i64>) {
        if present {
            for ((_, position), seen_keys) in std::mem::take(&mut self.present) {
                seen_keys.record(position);
            }
        }
        if let Some(number) = number {
            let above = match number.checked_add(1) {
                Some(more) => self.at_least.split_off(&(more, 0, 0)),
                None => BTreeMap::new(),
            };
            for ((_, _, position), seen_keys) in std::mem::replace(&mut self.at_least, above) {
                seen_keys.record(position);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.present.is_empty() && self.at_least.is_empty()
    }
}

/// Takes the bytes of a wait while it is held; `None` if its holder has used up its share.
fn room_for(bytes: &FairRoom, holder: &Identity, awaited: &[v1::StoreAwaited]) -> Option<Permit> {
    let mut room = bytes.none(holder.clone());
    room.grow(awaited.iter().map(|one| one.key.len() + KEY_BYTES).sum()).then_some(room)
}

type Registry = BTreeMap<StoreName, HashMap<Bytes, Awaiting>>;

/// The waits of one member. Clones share them.
#[derive(Clone)]
pub(super) struct StoreWaits {
    shared: Arc<Shared>,
    registry: Arc<Mutex<Registry>>,
    numbers: Arc<AtomicU64>,
    waits: FairRoom,
    bytes: FairRoom,
}

struct Registered<'a> {
    waits: &'a StoreWaits,
    store: &'a StoreName,
    awaited: &'a [v1::StoreAwaited],
    number: u64,
    seen_keys: Arc<SeenKeys>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        let mut registry = self.waits.registry.lock();
        let Some(keys) = registry.get_mut(self.store) else { return };
        for (position, one) in (0..).zip(self.awaited) {
            let Some(awaiting) = keys.get_mut(&one.key) else { continue };
            match one.at_least {
                None => drop(awaiting.present.remove(&(self.number, position))),
                Some(least) => drop(awaiting.at_least.remove(&(least, self.number, position))),
            }
            if awaiting.is_empty() {
                keys.remove(&one.key);
            }
        }
        if keys.is_empty() {
            registry.remove(self.store);
        }
    }
}

impl StoreWaits {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            registry: Arc::default(),
            numbers: Arc::default(),
            waits: FairRoom::new(WAITS_MAX),
            bytes: FairRoom::new(BYTES_MAX),
        }
    }

    /// Reads changed keys for which waits exist, and wakes those waits.
    pub(super) fn changed(&self, store: &StoreName, keys: &[Bytes]) {
        let mut registry = self.registry.lock();
        let Some(awaited) = registry.get_mut(store) else { return };
        let keys: BTreeSet<&Bytes> = keys.iter().filter(|key| awaited.contains_key(*key)).collect();
        if keys.is_empty() {
            return;
        }
        let found: Vec<(bool, Option<i64>)> = self.shared.node.ledger(|l| {
            let now = l.store(store);
            let look = |key: &&Bytes| {
                let numbers = awaited.get(*key).is_some_and(|a| !a.at_least.is_empty());
                let number = now.filter(|_| numbers).and_then(|s| s.number(key));
                (now.is_some_and(|s| s.has(key)), number)
            };
            keys.iter().map(look).collect()
        });
        for (key, (present, number)) in keys.into_iter().zip(found) {
            let Some(awaiting) = awaited.get_mut(key) else { continue };
            awaiting.look(present, number);
            if awaiting.is_empty() {
                awaited.remove(key);
            }
        }
    }

    fn register<'a>(
        &'a self,
        store: &'a StoreName,
        awaited: &'a [v1::StoreAwaited],
    ) -> Registered<'a> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let seen_keys = Arc::new(SeenKeys { awaited: awaited.len(), ..SeenKeys::default() });
        let mut registry = self.registry.lock();
        let keys = registry.entry(store.clone()).or_default();
        for (position, one) in (0..).zip(awaited) {
            let awaiting = keys.entry(one.key.clone()).or_default();
            match one.at_least {
                None => awaiting.present.insert((number, position), seen_keys.clone()),
                Some(least) => {
                    awaiting.at_least.insert((least, number, position), seen_keys.clone())
                }
            };
        }
        drop(registry);
        Registered { waits: self, store, awaited, number, seen_keys }
    }

    /// Returns once each of these keys was there at some time since the call, or after `wait_ms`, or when this epoch
    /// has ended. Returns whether all were, the positions of those that were, and what `read` finds at the last read.
    ///
    /// # Errors
    /// This member does not lead, or holds too many waits already.
    pub(super) async fn until<T: Default>(
        &self,
        holder: &Identity,
        (store, awaited): (&StoreName, &[v1::StoreAwaited]),
        wait_ms: u64,
        read: impl Fn(&Ledger) -> T,
    ) -> Result<(bool, Vec<u32>, T), RpcError> {
        // Before any wait, because nothing else counts the awaited keys (`message_weight`).
        let (Some(_wait), Some(_bytes)) =
            (self.waits.take(holder), room_for(&self.bytes, holder, awaited))
        else {
            let message = format!(
                "this member already holds its limit of {WAITS_MAX} waits or {BYTES_MAX} bytes of awaited keys, of which one \
                 identity may have three quarters: repeat the request later"
            );
            return Err(RpcError::new(ErrorCode::Overloaded, message));
        };
        let leader = self.shared.reading().await?;
        let registered = self.register(store, awaited);
        let seen_keys = &registered.seen_keys;
        let deadline = Instant::now() + Duration::from_millis(wait_ms).min(WAIT_MAX);
        let answer_due = seen_keys.answer_due();
        tokio::pin!(answer_due);
        let mut last = false;
        let mut checked_changes = None;
        loop {
            let (complete, now, found) = self.shared.read_ledger(|l| {
                let there = |one: &v1::StoreAwaited| is_there(l, store, one);
                let changes = l.store_changes();
                let complete = match checked_changes == Some(changes) {
                    true => seen_keys.is_complete(),
                    false => seen_keys.look(awaited, there),
                };
                let complete = complete || seeded(Bug::WaitWakesEarly);
                // A key that was there and is gone is not an answer as of this read, and neither are keys that were
                // seen one by one.
                let now = complete && awaited.len() == 1 && there(&awaited[0]);
                checked_changes = Some(changes);
                let found = if complete || last { read(l) } else { Default::default() };
                (complete, now, found)
            });
            if awaited.len() > 1 || (complete && !now) {
                log_position::of_several_looks();
            }
            if complete || last || Instant::now() >= deadline {
                let seen = seen_keys.positions.lock().iter().copied().collect();
                return Ok((complete, seen, found));
            }
            tokio::select! {
                () = seen_keys.all.notified() => {}
                () = &mut answer_due => last = true,
                () = tokio::time::sleep_until(deadline) => last = true,
                () = leader.ended.cancelled() => last = true,
                () = tokio::time::sleep(LOOK_EVERY) => {
                    log_position::of_several_looks();
                    self.shared.leader_state()?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::Role;

    fn seen_keys(awaited: usize) -> Arc<SeenKeys> {
        Arc::new(SeenKeys { awaited, ..SeenKeys::default() })
    }

    #[test]
    fn a_change_wakes_the_waits_that_it_satisfies_and_no_others() {
        let mut key = Awaiting::default();
        let (present, two, three, both) = (seen_keys(1), seen_keys(1), seen_keys(1), seen_keys(2));
        key.present.insert((1, 0), present.clone());
        key.at_least.insert((2, 2, 0), two.clone());
        key.at_least.insert((3, 3, 0), three.clone());
        key.present.insert((4, 1), both.clone());
        key.look(false, None);
        assert!(!present.is_complete());
        key.look(true, Some(2));
        assert!(present.is_complete() && two.is_complete());
        assert!(!three.is_complete() && !both.is_complete());
        assert_eq!(both.positions.lock().iter().copied().collect::<Vec<_>>(), [1]);
        key.look(true, Some(i64::MAX));
        assert!(three.is_complete() && key.is_empty());
    }

    #[test]
    fn the_keys_that_one_identity_awaits_leave_a_quarter_of_the_bytes_to_others() {
        let named = |name: &str| Identity::new(Role::Client, name, Vec::new()).expect("a name");
        let key = v1::StoreAwaited { key: Bytes::from(vec![7; 232]), at_least: None };
        let room = FairRoom::new(8000);
        let hold =
            |name: &str, keys: usize| room_for(&room, &named(name), &vec![key.clone(); keys]);
        let greedy = [hold("greedy", 4), hold("greedy", 2)];
        assert!(greedy.iter().all(Option::is_some), "1,000 bytes for each key");
        assert!(hold("greedy", 1).is_none(), "it has its share");
        assert!(hold("other", 3).is_none(), "there are not as many");
        let other = hold("other", 2);
        assert!(other.is_some(), "the rest is for others");
        drop((greedy, other));
        assert_eq!(room.left(), 8000);
    }

    #[test]
    fn no_key_takes_more_memory_than_is_counted_for_it() {
        /// Entries of a B-tree's leaf, and its other bytes.
        const LEAF: usize = 11;
        const LEAF_HEAD: usize = 16;
        /// The allocator rounds up in steps of at most a quarter.
        fn allocated(bytes: usize) -> usize {
            bytes.next_multiple_of(bytes.next_power_of_two() / 8)
        }
        fn leaf<K, V>() -> usize {
            allocated(LEAF * (size_of::<K>() + size_of::<V>()) + LEAF_HEAD)
        }
        // A hash table that has just doubled is seven sixteenths full, and the old one is still there.
        let slot = size_of::<(Bytes, Awaiting)>() + 1;
        let registered = slot * 16 / 7 + slot * 8 / 7;
        let waiting =
            leaf::<(u64, u32), Arc<SeenKeys>>().max(leaf::<(i64, u64, u32), Arc<SeenKeys>>());
        // Keys that are seen in order leave the leaves half full.
        let seen = leaf::<u32, ()>().div_ceil(LEAF / 2);
        // The request, and the keys to read when the wait ends.
        let asked = size_of::<v1::StoreAwaited>() + size_of::<Bytes>();
        let key = registered + waiting + seen + asked;
        assert!(
            (KEY_BYTES / 2..=KEY_BYTES).contains(&key),
            "{key} bytes: {registered} registered, {waiting} of who waits, {seen} seen, {asked} asked"
        );
    }
}

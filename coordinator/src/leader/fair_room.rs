//! A bounded number of places or bytes that callers share, of which no single caller takes all.
//!
//! *Invariant:* callers hold at most `places`, and one identity holds at most three quarters of them. The rest is left
//! for others.

use parking_lot::Mutex;
use rollout_proto::Identity;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Clone)]
pub(crate) struct FairRoom {
    places: usize,
    taken: Arc<Mutex<TakenPlaces>>,
}

#[derive(Default)]
struct TakenPlaces {
    all: usize,
    /// Places by identity; only of identities that hold any.
    by: HashMap<Identity, usize>,
}

/// Places of one holder, released on drop.
pub(crate) struct Permit {
    holder: Identity,
    count: usize,
    room: FairRoom,
}

impl FairRoom {
    pub(crate) fn new(places: usize) -> Self {
        Self { places, taken: Arc::default() }
    }

    /// How many places one identity may hold.
    fn share(&self) -> usize {
        self.places - self.places / 4
    }

    /// Takes a place for `holder`; `None` if there is none for it.
    pub(crate) fn take(&self, holder: &Identity) -> Option<Permit> {
        let mut permit = self.none(holder.clone());
        permit.grow(1).then_some(permit)
    }

    /// A holder without places, which may grow.
    pub(crate) fn none(&self, holder: Identity) -> Permit {
        Permit { holder, count: 0, room: self.clone() }
    }

    /// How many places are free.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.places - self.taken.lock().all
    }
}

impl Permit {
    pub(crate) fn holder(&self) -> &Identity {
        &self.holder
    }

    /// Takes this many more places. Returns false if the holder cannot have them.
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        // A holder without places has no entry, because nothing would remove it.
        if more == 0 {
            return true;
        }
        let mut taken = self.room.taken.lock();
        let own = taken.by.get(&self.holder).copied().unwrap_or(0);
        if taken.all + more > self.room.places || own + more > self.room.share() {
            return false;
        }
        taken.all += more;
        match taken.by.get_mut(&self.holder) {
            Some(own) => *own += more,
            None => drop(taken.by.insert(self.holder.clone(), more)),
        }
        self.count += more;
        true
    }

    /// Releases all places.
    pub(crate) fn give_back(&mut self) {
        let count = std::mem::take(&mut self.count);
        if count == 0 {
            return;
        }
        let mut taken = self.room.taken.lock();
        taken.all -= count;
        match taken.by.get_mut(&self.holder) {
            Some(own) if *own > count => *own -= count,
            _ => drop(taken.by.remove(&self.holder)),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::Role;

    #[test]
    fn one_identity_leaves_a_quarter_to_others_and_places_come_back() {
        let named = |name: &str| Identity::new(Role::Client, name, Vec::new()).unwrap();
        let (greedy, other) = (named("greedy"), named("other"));
        let room = FairRoom::new(8);
        let mut held: Vec<Permit> = std::iter::from_fn(|| room.take(&greedy)).collect();
        assert_eq!(held.len(), 6);
        let others: Vec<Permit> = std::iter::from_fn(|| room.take(&other)).collect();
        assert_eq!(others.len(), 2, "the rest is for others, and no more than there is");
        held.pop();
        assert!(room.take(&other).is_some());
        assert!(room.none(named("idle")).grow(0));
        drop((held, others));
        assert!(room.taken.lock().by.is_empty() && room.taken.lock().all == 0);
    }
}

//! Room for a bounded number of things that callers hold, of which no single caller takes all.
//!
//! *Invariant:* callers hold at most `places`, and one identity holds at most three quarters of them. The rest is left for
//! others.

use parking_lot::Mutex;
use rollout_proto::Identity;
use std::collections::HashMap;
use std::sync::Arc;

/// The room.
#[derive(Clone)]
pub(crate) struct FairRoom {
    places: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Identities that hold any.
    by: HashMap<Identity, usize>,
}

/// A place, given back when it is dropped.
pub(crate) struct Place {
    holder: Identity,
    taken: Arc<Mutex<Taken>>,
}

impl FairRoom {
    pub(crate) fn new(places: usize) -> Self {
        Self { places, taken: Arc::default() }
    }

    /// How many places one identity may have.
    fn share(&self) -> usize {
        self.places - self.places / 4
    }

    /// A place for `holder`; `None` where there is none for it.
    pub(crate) fn take(&self, holder: &Identity) -> Option<Place> {
        let mut taken = self.taken.lock();
        let own = taken.by.get(holder).copied().unwrap_or(0);
        if taken.all >= self.places || own >= self.share() {
            return None;
        }
        taken.all += 1;
        taken.by.insert(holder.clone(), own + 1);
        Some(Place { holder: holder.clone(), taken: self.taken.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.all -= 1;
        match taken.by.get_mut(&self.holder) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(taken.by.remove(&self.holder)),
        }
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
        let mut held: Vec<Place> = std::iter::from_fn(|| room.take(&greedy)).collect();
        assert_eq!(held.len(), 6);
        let others: Vec<Place> = std::iter::from_fn(|| room.take(&other)).collect();
        assert_eq!(others.len(), 2, "the rest is for others, and no more than there is");
        held.pop();
        assert!(room.take(&other).is_some());
        drop((held, others));
        assert!(room.taken.lock().by.is_empty() && room.taken.lock().all == 0);
    }
}

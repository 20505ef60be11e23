//! Owns: how many offers of each namespace report each route of the OpenAI API.
//!
//! *Invariant:* the counts are the sums over the offers in the index, whatever their slots' state. A slot whose engine
//! restarts still counts, so that a namespace does not lose a route for the time of a restart.
//! Absent: which slots these are, and which run may use them: a run that needs a route requires it as a property
//! ([`RunSpec::require_route`](crate::RunSpec::require_route)).

use super::Eligibility;
use crate::batch::spec::SlotOffer;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RouteCounts {
    by_namespace: BTreeMap<String, BTreeMap<String, usize>>,
}

impl RouteCounts {
    /// Counts the routes of an offer that came.
    pub(super) fn add(&mut self, namespace: &str, offer: &SlotOffer) {
        for route in offer.routes() {
            let counts = self.by_namespace.entry(namespace.to_owned()).or_default();
            *counts.entry(route.to_owned()).or_default() += 1;
        }
    }

    /// Stops counting the routes of an offer that is gone.
    pub(super) fn remove(&mut self, namespace: &str, offer: &SlotOffer) {
        let Some(counts) = self.by_namespace.get_mut(namespace) else { return };
        for route in offer.routes() {
            if let Some(count) = counts.get_mut(route) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(route);
                }
            }
        }
        if counts.is_empty() {
            self.by_namespace.remove(namespace);
        }
    }
}

impl Eligibility {
    /// The routes that slots of a namespace report, sorted. Costs these routes, however many slots there are.
    pub(crate) fn routes<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a str> {
        let counts = self.routes.by_namespace.get(namespace);
        counts.into_iter().flat_map(BTreeMap::keys).map(String::as_str)
    }

    /// Whether a slot of a namespace reports a route.
    pub(crate) fn has_route(&self, namespace: &str, route: &str) -> bool {
        self.routes.by_namespace.get(namespace).is_some_and(|counts| counts.contains_key(route))
    }
}

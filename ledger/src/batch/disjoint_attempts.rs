//! Attempts of which no two share a row: lapsed ones, and second attempts of rows that another slot runs.
//!
//! *Invariant:* two indexes, by row and by session, are derived from the grants and rebuilt on loading. So claiming
//! rows that came back, the return of a worker, and the end of a row that two slots run cost only what they touch,
//! however many attempts there are.

use crate::batch::attempts::Attempts;
use crate::batch::grant::Grant;
use crate::kernel::id::{Attempt, SessionId, SlotRef};
use crate::kernel::rows::Rows;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

/// Grants by attempt, with their indexes. Read as a map of grants, and encoded as it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DisjointAttempts {
    attempts: Attempts,
    /// Each range of rows, by its first row: its length and its attempt.
    by_row: BTreeMap<u64, (u32, Attempt)>,
    by_session: BTreeSet<(SessionId, Attempt)>,
}

impl Deref for DisjointAttempts {
    type Target = BTreeMap<Attempt, Grant>;

    fn deref(&self) -> &Self::Target {
        &self.attempts
    }
}

impl Serialize for DisjointAttempts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.attempts.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for DisjointAttempts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let attempts = Attempts::deserialize(deserializer)?;
        let mut all = Self { attempts, ..Self::default() };
        all.index_all();
        Ok(all)
    }
}

impl DisjointAttempts {
    pub(crate) fn insert(&mut self, attempt: Attempt, grant: Grant) {
        self.remove(&attempt);
        self.index(attempt, &grant);
        self.attempts.insert(attempt, grant);
    }

    /// Adds rows to an attempt, which starts as `empty` if it had none.
    pub(crate) fn add(&mut self, attempt: Attempt, empty: Grant, rows: &Rows) {
        let mut grant = self.remove(&attempt).unwrap_or(empty);
        grant.rows.unite(rows);
        self.insert(attempt, grant);
    }

    pub(crate) fn remove(&mut self, attempt: &Attempt) -> Option<Grant> {
        let grant = self.attempts.remove(attempt)?;
        for (start, _) in grant.rows.ranges() {
            self.by_row.remove(start);
        }
        self.by_session.remove(&(grant.slot.session, *attempt));
        Some(grant)
    }

    /// Removes rows from one attempt, which ends when it has none left.
    pub(crate) fn take(&mut self, attempt: &Attempt, rows: &Rows) {
        if let Some(mut grant) = self.remove(attempt) {
            grant.rows.subtract(rows);
            if !grant.rows.is_empty() {
                self.insert(*attempt, grant);
            }
        }
    }

    /// Removes rows from all attempts that have them.
    pub(crate) fn outdate(&mut self, rows: &Rows) {
        for attempt in self.of_rows(rows) {
            self.take(&attempt, rows);
        }
    }

    /// Makes an attempt another slot's.
    pub(crate) fn move_to(&mut self, attempt: &Attempt, slot: SlotRef) {
        if let Some(grant) = self.remove(attempt) {
            self.insert(*attempt, Grant { slot, ..grant });
        }
    }

    /// The attempts of a session, ascending.
    pub(crate) fn of_session(&self, session: SessionId) -> impl Iterator<Item = Attempt> + '_ {
        let all = (session, Attempt(0))..=(session, Attempt(u64::MAX));
        self.by_session.range(all).map(|of| of.1)
    }

    pub(crate) fn clear(&mut self) {
        self.attempts.clear();
        self.by_row.clear();
        self.by_session.clear();
    }

    /// See [`Attempts::mark_all`].
    pub(crate) fn mark_all(&mut self) {
        self.attempts.mark_all();
    }

    /// See [`Attempts::take_changed`].
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Attempt> {
        self.attempts.take_changed()
    }

    /// Whether the indexes match the grants.
    pub(crate) fn is_indexed(&self) -> bool {
        let mut again = Self { attempts: self.attempts.clone(), ..Self::default() };
        again.index_all();
        again == *self
    }

    /// Rows without those that an attempt has.
    pub(crate) fn without(&self, rows: &Rows) -> Rows {
        let mut left = rows.clone();
        for attempt in self.of_rows(rows) {
            if let Some(grant) = self.get(&attempt) {
                left.subtract(&grant.rows);
            }
        }
        left
    }

    /// The attempts that have any of these rows.
    pub(crate) fn of_rows(&self, rows: &Rows) -> BTreeSet<Attempt> {
        let mut found = BTreeSet::new();
        for &(start, len) in rows.ranges() {
            let end = start + u64::from(len);
            let before = self.by_row.range(..start).next_back();
            let before = before.filter(|(s, (l, _))| *s + u64::from(*l) > start);
            let all = before.into_iter().chain(self.by_row.range(start..end));
            found.extend(all.map(|(_, (_, attempt))| *attempt));
        }
        found
    }

    fn index(&mut self, attempt: Attempt, grant: &Grant) {
        let ranges = grant.rows.ranges().iter();
        self.by_row.extend(ranges.map(|(start, len)| (*start, (*len, attempt))));
        self.by_session.insert((grant.slot.session, attempt));
    }

    fn index_all(&mut self) {
        let grants = std::mem::take(&mut self.attempts);
        for (attempt, grant) in grants.iter() {
            self.index(*attempt, grant);
        }
        self.attempts = grants;
    }
}

impl<'a> IntoIterator for &'a DisjointAttempts {
    type Item = (&'a Attempt, &'a Grant);
    type IntoIter = std::collections::btree_map::Iter<'a, Attempt, Grant>;

    fn into_iter(self) -> Self::IntoIter {
        self.attempts.iter()
    }
}

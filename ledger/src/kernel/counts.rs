//! Counts by name. Derived.

use std::collections::BTreeMap;

/// Counts by name; a name with a count of zero has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts(BTreeMap<String, usize>);

impl Counts {
    /// One more.
    pub(crate) fn add(&mut self, name: &str) {
        match self.0.get_mut(name) {
            Some(count) => *count += 1,
            None => drop(self.0.insert(name.to_owned(), 1)),
        }
    }

    /// One fewer.
    pub(crate) fn remove(&mut self, name: &str) {
        match self.0.get_mut(name) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.0.remove(name)),
        }
    }

    pub(crate) fn get(&self, name: &str) -> usize {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The largest count.
    pub(crate) fn most(&self) -> usize {
        self.0.values().copied().max().unwrap_or(0)
    }
}

impl<'a> FromIterator<&'a str> for Counts {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Self {
        let mut counts = Self::default();
        names.into_iter().for_each(|name| counts.add(name));
        counts
    }
}

//! Counts how many records an operation visits one by one, for tests. Outside of tests it counts nothing and costs
//! nothing.

#[cfg(test)]
thread_local! {
    static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a visit to a record.
pub(crate) fn count_visit() {
    #[cfg(test)]
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

/// How many visits this takes.
#[cfg(test)]
pub(crate) fn visits_of<T>(act: impl FnOnce() -> T) -> u64 {
    let before = VISITS.with(std::cell::Cell::get);
    act();
    VISITS.with(std::cell::Cell::get) - before
}

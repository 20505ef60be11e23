//! Counts how many records an operation visits one by one, for tests. Outside of tests it counts nothing and costs
//! nothing.

#[cfg(test)]
thread_local! {
    static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a visit to a record.
pub(crate) fn look() {
    #[cfg(test)]
    LOOKS.with(|looks| looks.set(looks.get() + 1));
}

/// How many visits this takes.
#[cfg(test)]
pub(crate) fn looks_of<T>(act: impl FnOnce() -> T) -> u64 {
    let before = LOOKS.with(std::cell::Cell::get);
    act();
    LOOKS.with(std::cell::Cell::get) - before
}

//! How many records a test's operation looked at one by one. Without tests it counts nothing and costs nothing.

#[cfg(test)]
thread_local! {
    static LOOKS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A record is looked at.
pub(crate) fn look() {
    #[cfg(test)]
    LOOKS.with(|looks| looks.set(looks.get() + 1));
}

/// How many looks this takes.
#[cfg(test)]
pub(crate) fn looks_of<T>(act: impl FnOnce() -> T) -> u64 {
    let before = LOOKS.with(std::cell::Cell::get);
    act();
    LOOKS.with(std::cell::Cell::get) - before
}

//! How many files, and so connections, this process may have open.
//!
//! Invariant: the limit is never lowered, and never above what the system allows this user. Absent: a
//! check that it is enough; the code that opens files knows how many it needs.

/// Raises this process's limit of open files as far as the system allows, and returns it.
pub(super) fn raise() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to the place that it is given.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 1024;
    }
    let wanted = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
    // SAFETY: the call reads from the place that it is given.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) } == 0 {
        limit = wanted;
    }
    limit.rlim_cur
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_is_the_systems_own() {
        let raised = super::raise();
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call writes to the place that it is given.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
        assert_eq!((raised, limit.rlim_cur), (limit.rlim_max, limit.rlim_max));
    }
}

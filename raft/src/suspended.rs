//! Owns: how long the machine was suspended, which the clock of leases does not count.
//!
//! Invariant: none; two calls differ by the suspended time between them, and by what passes between the two clocks' readings.
//! Absent: a machine whose hypervisor stops all of its clocks. Nothing in it can know.

use std::time::Duration;

fn clock(id: libc::clockid_t) -> Duration {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to the place that it is given, and nowhere else.
    let result = unsafe { libc::clock_gettime(id, &raw mut at) };
    match result {
        0 => Duration::new(at.tv_sec.unsigned_abs(), at.tv_nsec.unsigned_abs() as u32),
        _ => Duration::ZERO,
    }
}

/// What is added, because in a time namespace either clock may be ahead of the other.
const ORIGIN: Duration = Duration::from_secs(1 << 40);

/// Counts what `CLOCK_BOOTTIME` counts and `CLOCK_MONOTONIC`, which [`std::time::Instant`] reads, does not.
pub(crate) fn suspended() -> Duration {
    let awake = clock(libc::CLOCK_MONOTONIC);
    ORIGIN + clock(libc::CLOCK_BOOTTIME) - awake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_still_while_the_machine_is_awake() {
        assert!(clock(libc::CLOCK_MONOTONIC) > Duration::ZERO);
        assert!(clock(libc::CLOCK_BOOTTIME) > Duration::ZERO);
        let before = suspended();
        std::thread::sleep(Duration::from_millis(300));
        // What passes between the readings of the clocks is noise, on a busy machine the more.
        let least = (0..100).map(|_| suspended().abs_diff(before)).min().expect("some");
        assert!(least < Duration::from_millis(100), "{least:?}");
    }
}

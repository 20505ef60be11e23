//! Owns: how long the machine was suspended, which the clock of leases does not count.
//!
//! Invariant: the results of two calls differ by the time suspended between them, and by the delay between reading
//! the two clocks: at most [`GAP_MAX`] each, unless the machine is too busy for that several times in a row.
//! Absent: a machine whose hypervisor stops all of its clocks. No process in it can detect that.

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

/// An offset, because in a time namespace either clock may be ahead of the other.
const ORIGIN: Duration = Duration::from_secs(1 << 40);

/// The most that may pass while the clocks are read. A thread that is preempted between two readings would otherwise
/// count that time as suspended, and one such value makes a leader ask a quorum until the next one.
const GAP_MAX: Duration = Duration::from_millis(1);

/// How often the clocks are read at most. Then the reading with the least gap counts.
const READINGS_MAX: usize = 8;

/// The time that `CLOCK_BOOTTIME` counts and `CLOCK_MONOTONIC`, which [`std::time::Instant`] reads, does not.
pub(crate) fn suspended() -> Duration {
    suspended_by(clock)
}

fn suspended_by(mut clock: impl FnMut(libc::clockid_t) -> Duration) -> Duration {
    let mut best: Option<(Duration, Duration)> = None;
    for _ in 0..READINGS_MAX {
        let before = clock(libc::CLOCK_MONOTONIC);
        let total = clock(libc::CLOCK_BOOTTIME);
        let gap = clock(libc::CLOCK_MONOTONIC).saturating_sub(before);
        if best.is_none_or(|(least, _)| gap < least) {
            best = Some((gap, ORIGIN + total - before));
        }
        if gap <= GAP_MAX {
            break;
        }
    }
    best.map_or(ORIGIN, |(_, suspended)| suspended)
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
        // The time between the two clock readings is noise, more so on a busy machine.
        let least = (0..100).map(|_| suspended().abs_diff(before)).min().expect("some");
        assert!(least < Duration::from_millis(100), "{least:?}");
    }

    /// A machine that was suspended for an hour, and that stalls this long before each clock reading.
    fn measured(stalls_ms: &[u64]) -> (Duration, usize) {
        let (mut awake, mut readings) = (Duration::from_secs(500), 0);
        let suspended = suspended_by(|id| {
            awake += Duration::from_millis(stalls_ms.get(readings).copied().unwrap_or(0));
            readings += 1;
            let hour = Duration::from_secs(3600);
            if id == libc::CLOCK_BOOTTIME { awake + hour } else { awake }
        });
        (suspended - ORIGIN - Duration::from_secs(3600), readings)
    }

    #[test]
    fn a_thread_that_stands_still_between_two_readings_does_not_count_as_suspended() {
        assert_eq!(measured(&[]), (Duration::ZERO, 3));
        assert_eq!(measured(&[0, 70, 0]), (Duration::ZERO, 6), "it reads again");
        assert_eq!(measured(&[0, 0, 70]), (Duration::ZERO, 6));
        assert_eq!(measured(&[0, 70, 0, 0, 70, 0]), (Duration::ZERO, 9));
        let (noise, readings) = measured(&[5; 100]);
        assert_eq!((noise, readings), (Duration::from_millis(5), 3 * READINGS_MAX), "it ends");
        let stalls: Vec<u64> = (1..=100).rev().collect();
        assert!(measured(&stalls).0 < Duration::from_millis(80), "the least gap counts");
    }
}

//! Owns: which engine's death the kernel's count of OOM kills explains.
//!
//! Invariant: the count belongs to the control group, not to an engine. Each increment explains at most one death, and
//! only of an engine that was alive when it happened.
//! Absent: whether such a death looks like an OOM kill (`evidence`).

use std::path::PathBuf;

use parking_lot::Mutex;

/// The kills that have already explained a death.
#[derive(Debug, Default)]
pub(crate) struct OomKills {
    /// All kills up to this count are claimed.
    used: Mutex<u64>,
}

/// The kills in this process's control group, which all of its engines share.
pub(crate) static OF_THIS_HOST: OomKills = OomKills { used: Mutex::new(0) };

impl OomKills {
    /// Claims a kill that was counted since the count stood at `then` and that is unclaimed; returns whether there was
    /// one.
    pub(crate) fn claim(&self, then: Option<u64>, now: Option<u64>) -> bool {
        let (Some(then), Some(now)) = (then, now) else { return false };
        let mut used = self.used.lock();
        let from = then.max(*used);
        let more = now > from;
        if more {
            *used = from + 1;
        }
        more
    }
}

/// The kernel's count of OOM kills in this process's control group; `None` if it cannot be read.
pub(crate) fn count() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let path = PathBuf::from("/sys/fs/cgroup").join(group).join("memory.events");
    counted(&std::fs::read_to_string(path).ok()?)
}

fn counted(events: &str) -> Option<u64> {
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_kill_explains_one_death_of_those_that_lived_then() {
        let kills = OomKills::default();
        let two_began_at = Some(5);
        assert!(kills.claim(two_began_at, Some(6)));
        assert!(!kills.claim(two_began_at, Some(6)), "the other died of something else");
        assert!(kills.claim(two_began_at, Some(7)), "unless there was another kill");
        assert!(!kills.claim(Some(7), Some(7)), "a life that began later had none");
        let both = OomKills::default();
        assert!(both.claim(Some(0), Some(2)) && both.claim(Some(0), Some(2)));
        assert!(!both.claim(Some(0), Some(2)));
        assert!(!both.claim(None, Some(9)) && !both.claim(Some(0), None), "not known");
    }

    #[test]
    fn the_kernels_counter_is_found_among_the_others() {
        let events = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(counted(events), Some(2));
        assert_eq!(counted("oom 3\n"), None);
    }
}

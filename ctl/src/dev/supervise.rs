//! Keeps the processes alive: restarts each that dies, with a growing pause.
//!
//! Invariant: a process that keeps dying is started at most once in ten seconds, and every death and start is
//! reported. Absent: any judgment of a process that runs but does not serve.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::cluster::{DevCluster, Exit};
use super::process;

const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A process that ran this long is healthy: its next death starts again with the first pause.
const HEALTHY: Duration = Duration::from_secs(30);

/// The processes to restart, and when.
#[derive(Debug, Default)]
pub(super) struct Supervisor {
    restart: bool,
    pauses: BTreeMap<String, Duration>,
    due: BTreeMap<String, Instant>,
}

impl Supervisor {
    /// A supervisor that restarts dead processes, or only reports them.
    pub(super) fn new(restart: bool) -> Self {
        Self { restart, ..Self::default() }
    }

    /// Checks the processes once. Returns the messages to print.
    ///
    /// # Errors
    /// Waiting for a process failed, or its PID cannot be written.
    pub(super) fn tick(&mut self, cluster: &mut DevCluster) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        for exit in cluster.reap()? {
            lines.push(self.died(&exit, Instant::now()));
        }
        let now = Instant::now();
        let due: Vec<String> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.due.remove(&name);
            lines.push(match cluster.start(&name) {
                Ok(pid) => format!("{name} started again as pid {pid}"),
                Err(error) => {
                    let pause = self.next_pause(&name, Duration::ZERO);
                    self.due.insert(name.clone(), now + pause);
                    format!("{name} could not be started: {error:#}; next try in {pause:?}")
                }
            });
        }
        Ok(lines)
    }

    fn died(&mut self, exit: &Exit, now: Instant) -> String {
        let how = process::describe_exit(exit.status);
        let what =
            format!("{} {} (pid {}) ended with {how}", exit.kind.noun(), exit.name, exit.pid);
        if !self.restart {
            return what;
        }
        let pause = self.next_pause(&exit.name, exit.ran);
        self.due.insert(exit.name.clone(), now + pause);
        format!("{what}; starting it again in {pause:?}")
    }

    fn next_pause(&mut self, name: &str, ran: Duration) -> Duration {
        let pause = match self.pauses.get(name) {
            Some(last) if ran < HEALTHY => (*last * 2).min(PAUSE_MAX),
            _ => PAUSE_FIRST,
        };
        self.pauses.insert(name.to_owned(), pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_keeps_dying_waits_longer_each_time_up_to_a_bound() {
        let mut supervisor = Supervisor::new(true);
        let pauses: Vec<u128> = (0..9)
            .map(|_| supervisor.next_pause("c1", Duration::from_millis(5)).as_millis())
            .collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000]);
        assert_eq!(supervisor.next_pause("c1", HEALTHY), PAUSE_FIRST);
        assert_eq!(supervisor.next_pause("c2", Duration::ZERO), PAUSE_FIRST);
    }
}

//! The processes of members: which run, and how those ended that the suite did not kill.
//!
//! *Invariant:* every end that the suite did not cause is reported once, also when the suite was about to kill the
//! process and found it dead.

use crate::process::Process;
use std::process::ExitStatus;
use std::time::Instant;

/// The end of a member's process that the suite did not cause.
pub struct Death {
    /// The member.
    pub at: usize,
    pub status: ExitStatus,
    /// Its log reports a panic.
    pub panicked: bool,
    /// It could not start because another process of this machine had its address.
    pub port_taken: bool,
    /// When it was noticed.
    pub seen: Instant,
}

/// See the module. Members are numbered from 0.
#[derive(Default)]
pub(super) struct Processes {
    slots: Vec<Option<Process>>,
    /// Deaths of processes that were found dead when they were to be killed.
    found: Vec<Death>,
}

impl Processes {
    /// Adds a member that does not run yet.
    pub(super) fn add(&mut self) {
        self.slots.push(None);
    }

    /// The member's new process.
    pub(super) fn put(&mut self, at: usize, process: Process) {
        self.slots[at] = Some(process);
    }

    /// The member's process, if it was started and not removed.
    pub(super) fn of(&mut self, at: usize) -> Option<&mut Process> {
        self.slots[at].as_mut()
    }

    pub(super) fn runs(&self, at: usize) -> bool {
        self.slots[at].is_some()
    }

    /// Kills it. True if it was alive until then; how it ended otherwise is kept for [`Self::deaths`].
    pub(super) fn kill(&mut self, at: usize) -> bool {
        if let Some(death) = self.died(at) {
            self.found.push(death);
        }
        self.slots[at].take().is_some_and(|mut process| process.kill())
    }

    /// How it ended, if the suite did not kill it. Returned once.
    pub(super) fn died(&mut self, at: usize) -> Option<Death> {
        let process = self.slots[at].as_mut()?;
        let status = process.ended()?;
        let (panicked, port_taken) = (process.panicked(), process.found_its_port_taken());
        self.slots[at] = None;
        Some(Death { at, status, panicked, port_taken, seen: Instant::now() })
    }

    /// Every death that was not returned yet.
    pub(super) fn deaths(&mut self) -> Vec<Death> {
        let mut deaths = std::mem::take(&mut self.found);
        deaths.extend((0..self.slots.len()).filter_map(|at| self.died(at)));
        deaths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    #[test]
    fn each_unintended_end_is_reported_once_even_if_found_on_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        let mut processes = Processes::default();
        let scripts = [
            "echo cannot listen on 127.0.0.1:9; exit 1",
            "sleep 60",
            "echo panicked at a.rs:1; exit 101",
            "exit 74",
        ];
        for (at, script) in scripts.into_iter().enumerate() {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let log = dir.path().join(format!("c{at}.log"));
            processes.add();
            processes.put(at, Process::start(command, &log).unwrap());
        }
        for at in [0, 2, 3] {
            while processes.of(at).unwrap().ended().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        assert!(processes.kill(1), "it was alive");
        assert!(!processes.kill(2), "it was not");
        assert_eq!(processes.died(3).and_then(|death| death.status.code()), Some(74));
        let told = processes.deaths().into_iter().map(|d| (d.at, d.panicked, d.port_taken));
        assert_eq!(told.collect::<Vec<_>>(), [(2, true, false), (0, false, true)]);
        assert!(processes.deaths().is_empty() && !(0..4).any(|at| processes.runs(at)));
    }
}

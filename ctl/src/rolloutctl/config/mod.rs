//! `rolloutctl config`: what the daemons are told, by whom, and whether it is good.
//!
//! Invariant: works without a daemon and without a cluster; a key that a daemon takes is in the tables here and none else,
//! which a test over the real programs sees to. Deliberately absent: changing a file.

mod check;
mod coordinator;
pub(super) mod default;
mod file;
mod key;
pub(super) mod schema;
pub(super) mod validate;
pub(super) mod view;
mod worker;

use std::path::Path;

pub(super) use self::check::{Problem, problems};
pub(super) use self::file::File;
use self::key::Key;

/// Whose configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Daemon {
    /// rollout-coordinator's
    Coordinator,
    /// rollout-worker's
    Worker,
}

impl Daemon {
    fn keys(self) -> &'static [Key] {
        match self {
            Daemon::Coordinator => coordinator::KEYS,
            Daemon::Worker => worker::KEYS,
        }
    }

    pub(super) fn program(self) -> &'static str {
        match self {
            Daemon::Coordinator => "rollout-coordinator",
            Daemon::Worker => "rollout-worker",
        }
    }

    /// The variable that names its file.
    fn file_env(self) -> &'static str {
        match self {
            Daemon::Coordinator => "ROLLOUT_COORDINATOR_CONFIG",
            Daemon::Worker => "ROLLOUT_WORKER_CONFIG",
        }
    }

    /// Where its unit looks for the file.
    fn file_usual(self) -> &'static Path {
        Path::new(match self {
            Daemon::Coordinator => "/etc/rollout/coordinator.toml",
            Daemon::Worker => "/etc/rollout/worker.toml",
        })
    }

    /// Whose a file is, by what only one of them has.
    pub(super) fn of(table: &toml::Table) -> Self {
        match table.contains_key("listen") || table.contains_key("raft") {
            true => Daemon::Coordinator,
            false => Daemon::Worker,
        }
    }
}

//! `rolloutctl config`: show and validate the daemons' configuration.
//!
//! Invariant: it works without a daemon and without a cluster. The keys are those that a daemon accepts: crate
//! `rollout-config` declares them for both. Absent: changing a file.

mod check;
pub(super) mod default;
mod file;
pub(super) mod schema;
pub(super) mod validate;
pub(super) mod view;

use std::net::SocketAddr;
use std::path::Path;

pub(super) use self::check::{Problem, problems};
pub(super) use self::file::File;
use self::file::get;
use rollout_config::{Key, Kind};

/// Whose configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Daemon {
    /// rollout-coordinator's
    Coordinator,
    /// rollout-worker's
    Worker,
}

impl Daemon {
    fn settings(self) -> rollout_config::Daemon {
        match self {
            Daemon::Coordinator => rollout_config::Daemon::Coordinator,
            Daemon::Worker => rollout_config::Daemon::Worker,
        }
    }

    fn keys(self) -> &'static [Key] {
        rollout_config::keys(self.settings())
    }

    pub(super) fn program(self) -> &'static str {
        self.settings().program()
    }

    /// The environment variable for the path of its file.
    fn file_env(self) -> &'static str {
        match self {
            Daemon::Coordinator => "ROLLOUT_COORDINATOR_CONFIG",
            Daemon::Worker => "ROLLOUT_WORKER_CONFIG",
        }
    }

    /// The path of the file that its systemd unit uses.
    fn file_usual(self) -> &'static Path {
        Path::new(match self {
            Daemon::Coordinator => "/etc/rollout/coordinator.toml",
            Daemon::Worker => "/etc/rollout/worker.toml",
        })
    }

    /// The addresses on which it listens according to a file, and their keys. Missing keys have their defaults if the
    /// file has the section.
    pub(super) fn addresses(self, file: &File) -> Vec<(&'static str, SocketAddr)> {
        let of = |key: &'static Key| {
            let section = key.path.split_once('.').map(|(section, _)| section);
            let on = section.is_none_or(|section| get(&file.table, section).is_some());
            let text = match file.get(&key.path) {
                Some(value) => value.as_str()?,
                None => Some(key.default.trim_matches('"')).filter(|_| on)?,
            };
            Some((key.path.as_str(), text.parse().ok()?))
        };
        self.keys().iter().filter(|key| key.kind == Kind::Address).filter_map(of).collect()
    }

    /// The daemon of a file, detected by keys that only one daemon has.
    pub(super) fn of(table: &toml::Table) -> Self {
        match table.contains_key("listen") || table.contains_key("raft") {
            true => Daemon::Coordinator,
            false => Daemon::Worker,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<(&'static str, String)> {
        let table: toml::Table = text.parse().unwrap();
        let file = File { path: "t.toml".into(), table };
        let all = Daemon::of(&file.table).addresses(&file);
        all.into_iter().map(|(key, address)| (key, address.to_string())).collect()
    }

    #[test]
    fn a_daemon_listens_where_its_file_says_and_where_it_does_by_default() {
        let member = "[listen]\nclient = \"0.0.0.0:7420\"\npeer = \"0.0.0.0:7421\"\n";
        let usual = [
            ("listen.client", "0.0.0.0:7420".to_owned()),
            ("listen.peer", "0.0.0.0:7421".to_owned()),
            ("listen.http", "127.0.0.1:7422".to_owned()),
        ];
        assert_eq!(addresses(member), usual);
        let enrolls = format!("{member}[enrollment]\nlisten = \"0.0.0.0:7423\"\n");
        assert_eq!(addresses(&enrolls)[3], ("enrollment.listen", "0.0.0.0:7423".to_owned()));
        assert!(addresses("name = \"w1\"\n").is_empty(), "a worker listens where it is told to");
        let gateway = addresses("metrics_listen = \"0.0.0.0:9464\"\n[store_gateway]\n");
        let keys: Vec<_> = gateway.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["metrics_listen", "store_gateway.listen"]);
    }
}

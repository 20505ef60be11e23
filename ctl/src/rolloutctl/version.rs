//! `rolloutctl version`.

use serde::Serialize;

use crate::output::{self, Report};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'static str>,
    api_version: &'static str,
}

impl Report for Version {
    const KIND: &'static str = "Version";

    fn table(&self) -> String {
        match self.commit {
            Some(commit) => format!("rolloutctl {} ({commit})\n", self.version),
            None => format!("rolloutctl {}\n", self.version),
        }
    }
}

/// No arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct VersionArgs {}

impl Verb for VersionArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Prints the version of this program, without contacting a cluster.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        output::emit(
            globals.format,
            &Version {
                version: env!("CARGO_PKG_VERSION"),
                commit: rollout_proto::commit(),
                api_version: output::API_VERSION,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Version { version: "0.1.0", commit: None, api_version: output::API_VERSION };
        crate::golden::report("version.txt", &report);
    }

    #[test]
    fn it_shows_the_commit_if_the_build_knew_it() {
        let commit = Some("4f2c");
        let report = Version { version: "0.1.0", commit, api_version: output::API_VERSION };
        assert_eq!(report.table(), "rolloutctl 0.1.0 (4f2c)\n");
    }
}

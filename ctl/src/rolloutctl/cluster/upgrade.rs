//! `rolloutctl cluster upgrade`: raises the version that gates commands and formats.
//!
//! Invariant: the version changes only if every member has just reported that it supports the new one.
//! Absent: a way back. Builds that do not know the version can no longer start on the data.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::output::{self, Report, Table};
use crate::rolloutctl::consent;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// To which version.
#[derive(Debug, clap::Args)]
pub(crate) struct UpgradeArgs {
    /// Cluster version, which gates commands and formats [default: the highest that every member
    /// supports]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    to: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Upgraded {
    /// The version before.
    before: u32,
    /// The version now, or, with `--dry-run`, what it would become.
    version: u32,
    /// Whether it was only a dry run.
    dry_run: bool,
    members: Vec<MemberVersions>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MemberVersions {
    name: String,
    version_min: u32,
    version_max: u32,
}

impl Report for Upgraded {
    const KIND: &'static str = "ClusterUpgrade";

    fn table(&self) -> String {
        let mut table = Table::new(&["MEMBER", "SUPPORTS"]);
        for member in &self.members {
            let range = format!("{} to {}", member.version_min, member.version_max);
            table.row([member.name.clone(), range]);
        }
        let Self { before, version, .. } = self;
        let text = match (self.dry_run, before == version) {
            (_, true) => format!("the cluster's version is {version}; there is nothing to raise"),
            (true, false) => {
                format!("would raise the cluster's version from {before} to {version}")
            }
            (false, false) => format!("the cluster's version is {version}, after {before}"),
        };
        format!("{table}{text}\n")
    }
}

impl Verb for UpgradeArgs {
    const KIND: Kind<Self> = Kind::Change {
        numbered: false,
        confirm: true,
        // The leader itself reports the version that the cluster would get.
        dry_run: |args, globals| Box::pin(upgrade(globals, args, true)),
    };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        upgrade(globals, self, false).await
    }
}

/// First queries the outcome, and then raises the version if that changes anything and the user consents.
async fn upgrade(globals: &Globals, args: UpgradeArgs, dry_run: bool) -> anyhow::Result<()> {
    let client = globals.connect.client(None)?;
    let ask = async |dry_run: bool, version: u32| {
        let request = v1::UpgradeClusterRequest { version, dry_run };
        let answer = client.with_leader("upgrade the cluster", |channel| async move {
            services::cluster(channel).upgrade_cluster(request).await
        });
        answer.await
    };
    let mut answer = ask(true, args.to.unwrap_or(0)).await?;
    if !dry_run && answer.version > answer.before {
        let version = answer.version.to_string();
        consent::confirm(
            &format!("raising the cluster's version to {version}"),
            &version,
            globals.consent,
        )?;
        answer = ask(false, answer.version).await?;
    }
    let v1::UpgradeClusterResponse { before, version, members, .. } = answer;
    let members = members.into_iter().map(|m| MemberVersions {
        name: m.name,
        version_min: m.version_min,
        version_max: m.version_max,
    });
    output::emit(globals.format, &Upgraded { before, version, dry_run, members: members.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let member =
            |name: &str| MemberVersions { name: name.into(), version_min: 1, version_max: 2 };
        let members = vec![member("c1"), member("c2"), member("c3")];
        let report = Upgraded { before: 1, version: 2, dry_run: false, members };
        crate::golden::report("cluster-upgrade.txt", &report);
    }
}

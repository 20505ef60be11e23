//! `rolloutctl cert init-ca`: creates a certificate authority unless it exists.

use std::path::PathBuf;

use rollout_proto::pki;
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Report};
use crate::rolloutctl::dry_run::{Plan, PlannedHere, planned_here};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Where, and for whom.
#[derive(Debug, clap::Args)]
pub(crate) struct InitCaArgs {
    /// Directory of the authority. Guard it: its key can certify any identity
    #[arg(long = "ca-dir", value_name = "DIR")]
    pub(in crate::rolloutctl) ca_dir: PathBuf,
    /// The name of the cluster
    #[arg(long = "cluster", value_name = "NAME", default_value = "rollout")]
    cluster: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Authority {
    cluster: String,
    ca_file: PathBuf,
}

impl Report for Authority {
    const KIND: &'static str = "CertificateAuthority";

    fn table(&self) -> String {
        format!("authority of {}: {}\n", self.cluster, self.ca_file.display())
    }
}

impl Verb for InitCaArgs {
    const KIND: Kind<Self> =
        Kind::Change { numbered: false, confirm: false, dry_run: planned_here };

    /// Creates it and prints its path.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let ca_file = pki::init_ca(&self.ca_dir, &self.cluster)?;
        output::emit(globals.format, &Authority { cluster: self.cluster.clone(), ca_file })
    }
}

impl PlannedHere for InitCaArgs {
    fn plan(self, _connect: &ConnectArgs) -> anyhow::Result<Plan> {
        let key = self.ca_dir.join("ca.key");
        let now = format!("{} {}", key.display(), super::there(&key));
        let would = format!("create a CA in {} unless it has one", self.ca_dir.display());
        Ok(Plan::new(would, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Authority { cluster: "prod".into(), ca_file: "ca/ca.pem".into() };
        crate::golden::report("cert-init-ca.txt", &report);
    }
}

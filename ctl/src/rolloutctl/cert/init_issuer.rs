//! `rolloutctl cert init-issuer`: the intermediate CA by which members certify workers and clients.

use std::path::PathBuf;

use rollout_proto::pki;
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Report};
use crate::rolloutctl::dry_run::{Plan, PlannedHere, planned_here};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Below which authority, and where to.
#[derive(Debug, clap::Args)]
pub(crate) struct InitIssuerArgs {
    /// Directory of the authority, see `cert init-ca`
    #[arg(long = "ca-dir", value_name = "DIR")]
    pub(in crate::rolloutctl) ca_dir: PathBuf,
    /// Directory for issuer.pem and issuer.key; copy both to every member
    #[arg(long = "out-dir", value_name = "DIR", default_value = ".")]
    pub(in crate::rolloutctl) out_dir: PathBuf,
    /// Validity in days
    #[arg(long, default_value_t = 365)]
    days: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct IntermediateCa {
    issuer_cert_file: PathBuf,
    issuer_key_file: PathBuf,
}

impl Report for IntermediateCa {
    const KIND: &'static str = "IssuingAuthority";

    fn table(&self) -> String {
        format!(
            "issuer_cert_file = {:?}\nissuer_key_file  = {:?}\n",
            self.issuer_cert_file, self.issuer_key_file
        )
    }
}

impl Verb for InitIssuerArgs {
    const KIND: Kind<Self> =
        Kind::Change { numbered: false, confirm: false, dry_run: planned_here };

    /// Creates it and prints its path as keys of a member's config file.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let files = pki::init_issuer(&self.ca_dir, &self.out_dir, self.days)?;
        let (issuer_cert_file, issuer_key_file) = (files.cert, files.key);
        output::emit(globals.format, &IntermediateCa { issuer_cert_file, issuer_key_file })
    }
}

impl PlannedHere for InitIssuerArgs {
    fn plan(self, _connect: &ConnectArgs) -> anyhow::Result<Plan> {
        let key = self.out_dir.join("issuer.key");
        let now = format!("{} {}", key.display(), super::there(&key));
        let would = format!("create an intermediate CA below {}", self.ca_dir.display());
        Ok(Plan::new(would, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = IntermediateCa {
            issuer_cert_file: "issuer/issuer.pem".into(),
            issuer_key_file: "issuer/issuer.key".into(),
        };
        crate::golden::report("cert-init-issuer.txt", &report);
    }
}

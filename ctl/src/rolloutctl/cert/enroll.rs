//! `rolloutctl cert enroll`: gets a certificate from the cluster with a join token.
//!
//! Invariant: the key is made here and stays here. The token can be read from a file or a variable, so that it need
//! not show in the process list.

use std::path::PathBuf;
use std::time::Duration;

use rollout_proto::enrollment::{self, EnrollError, Enrolled, JoinToken};
use rollout_proto::{ClientError, TlsFiles};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Report};
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{Plan, PlannedHere, planned_here};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// The default time to try members.
const PATIENCE: Duration = Duration::from_secs(30);

/// By which token, as whom and where to.
#[derive(Debug, clap::Args)]
pub(crate) struct EnrollArgs {
    /// Name of the worker or user
    pub(in crate::rolloutctl) name: String,
    /// The token, as `token create` printed it
    #[arg(long, value_name = "TOKEN", env = "ROLLOUT_JOIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// A file with the token
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Enrollment address of a member; give all of them
    #[arg(long = "at", value_name = "HOST:PORT", required = true, value_delimiter = ',')]
    at: Vec<String>,
    /// Directory for ca.pem, NAME.pem and NAME.key; an existing key is reused
    #[arg(long = "out-dir", value_name = "DIR", default_value = ".")]
    pub(in crate::rolloutctl) out_dir: PathBuf,
}

/// A certificate from the cluster, and its files.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Certified {
    role: String,
    name: String,
    ca_file: PathBuf,
    cert_file: PathBuf,
    key_file: PathBuf,
    lifetime_s: u64,
}

impl Certified {
    pub(super) fn new(files: TlsFiles, enrolled: Enrolled) -> Self {
        Self {
            role: enrolled.identity.role.to_string(),
            name: enrolled.identity.name,
            ca_file: files.ca,
            cert_file: files.cert,
            key_file: files.key,
            lifetime_s: enrolled.lifetime.as_secs(),
        }
    }
}

impl Report for Certified {
    const KIND: &'static str = "IssuedCertificate";

    fn table(&self) -> String {
        format!(
            "{} {}, valid for {} s\nca_file   = {:?}\ncert_file = {:?}\nkey_file  = {:?}\n",
            self.role, self.name, self.lifetime_s, self.ca_file, self.cert_file, self.key_file
        )
    }
}

/// The member's error code determines the exit status.
pub(super) fn failed(error: EnrollError) -> anyhow::Error {
    match error {
        EnrollError::Renewal(error) => error.into(),
        EnrollError::Refused { endpoint, error }
        | EnrollError::Unavailable { endpoint, error, .. } => {
            anyhow::Error::from(ClientError::from(error)).context(format!("asked {endpoint}"))
        }
        other => other.into(),
    }
}

fn token(args: &EnrollArgs) -> anyhow::Result<JoinToken> {
    let text = match (&args.token, &args.token_file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => std::fs::read_to_string(file)
            .map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?,
        (None, None) => {
            return Err(Failure::usage("give --token-file, --token or ROLLOUT_JOIN_TOKEN").into());
        }
    };
    text.parse::<JoinToken>().map_err(|error| Failure::usage(error.to_string()).into())
}

impl Verb for EnrollArgs {
    const KIND: Kind<Self> =
        Kind::Change { numbered: false, confirm: false, dry_run: planned_here };

    /// Enrolls, and prints the paths of the certificate as config file keys.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let token = token(&self)?;
        let files = enrollment::files_in(&self.out_dir, &self.name);
        let patience = globals.connect.timeout.unwrap_or(PATIENCE);
        let enrolled = enrollment::enroll(&token, &self.name, &self.at, &files, patience).await;
        output::emit(globals.format, &Certified::new(files, enrolled.map_err(failed)?))
    }
}

impl PlannedHere for EnrollArgs {
    fn plan(self, _connect: &ConnectArgs) -> anyhow::Result<Plan> {
        let files = enrollment::files_in(&self.out_dir, &self.name);
        let would = format!("enroll {} with a join token", self.name);
        Ok(Plan::new(would, format!("{} {}", files.cert.display(), super::there(&files.cert))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Certified {
            role: "worker".into(),
            name: "w1".into(),
            ca_file: "/etc/rollout/ca.pem".into(),
            cert_file: "/etc/rollout/worker-w1.pem".into(),
            key_file: "/etc/rollout/worker-w1.key".into(),
            lifetime_s: 86_400,
        };
        crate::golden::report("cert-enroll.txt", &report);
    }
}

//! `rolloutctl cert issue ROLE NAME`: a certificate for a member, worker, viewer, client or admin.
//!
//! Invariant: a member's certificate names at least one address, or the member would be unreachable.

use std::net::IpAddr;
use std::path::PathBuf;

use rollout_proto::{Role, pki};
use serde::Serialize;

use super::instant::parse_instant;
use crate::connect::ConnectArgs;
use crate::output::{self, Report};
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{Plan, PlannedHere, planned_here};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Whom the certificate names.
#[derive(Debug, clap::Args)]
pub(crate) struct IssueArgs {
    /// member, worker, viewer, client or admin
    pub(in crate::rolloutctl) role: Role,
    /// Name of the member, worker or user
    pub(in crate::rolloutctl) name: String,
    /// Directory of the authority, see `cert init-ca`
    #[arg(long = "ca-dir", value_name = "DIR")]
    pub(in crate::rolloutctl) ca_dir: PathBuf,
    /// Where to write ca.pem, ROLE-NAME.pem and ROLE-NAME.key
    #[arg(long = "out-dir", value_name = "DIR", default_value = ".")]
    pub(in crate::rolloutctl) out_dir: PathBuf,
    /// Namespaces that the certificate is limited to; repeatable [default: all]
    #[arg(long = "for-namespace", value_name = "NAME", value_delimiter = ',')]
    for_namespaces: Vec<String>,
    /// Host name of a member; repeatable
    #[arg(long = "dns", value_name = "HOST", value_delimiter = ',')]
    dns_names: Vec<String>,
    /// IP address of a member; repeatable
    #[arg(long = "ip", value_name = "ADDR", value_delimiter = ',')]
    ip_addrs: Vec<IpAddr>,
    /// Validity in days
    #[arg(long, default_value_t = 365)]
    days: u32,
    /// Start of validity: `now`, or a time like 2026-11-27T09:30:00Z [default: two hours ago,
    /// because clocks differ]. After `cert revoke --issued-before T`, give T or later
    #[arg(long, value_name = "TIME", value_parser = parse_instant)]
    valid_from: Option<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Issued {
    role: String,
    name: String,
    ca_file: PathBuf,
    cert_file: PathBuf,
    key_file: PathBuf,
}

impl Report for Issued {
    const KIND: &'static str = "IssuedCertificate";

    fn table(&self) -> String {
        format!(
            "{} {}\nca_file   = {:?}\ncert_file = {:?}\nkey_file  = {:?}\n",
            self.role, self.name, self.ca_file, self.cert_file, self.key_file
        )
    }
}

impl Verb for IssueArgs {
    const KIND: Kind<Self> =
        Kind::Change { numbered: false, confirm: false, dry_run: planned_here };

    /// Issues it and prints its paths as config file keys.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        if self.role == Role::Member && self.dns_names.is_empty() && self.ip_addrs.is_empty() {
            return Err(
                Failure::usage("a member needs --dns or --ip: it is reached under them").into()
            );
        }
        let request = pki::IssueRequest {
            role: self.role,
            name: self.name.clone(),
            namespaces: self.for_namespaces.clone(),
            dns_names: self.dns_names.clone(),
            ip_addrs: self.ip_addrs.clone(),
            days: self.days,
        };
        let files = match self.valid_from {
            Some(from) => pki::issue_from(&self.ca_dir, &request, &self.out_dir, from)?,
            None => pki::issue(&self.ca_dir, &request, &self.out_dir)?,
        };
        output::emit(
            globals.format,
            &Issued {
                role: self.role.to_string(),
                name: self.name.clone(),
                ca_file: files.ca,
                cert_file: files.cert,
                key_file: files.key,
            },
        )
    }
}

impl PlannedHere for IssueArgs {
    fn plan(self, _connect: &ConnectArgs) -> anyhow::Result<Plan> {
        let file = self.out_dir.join(format!("{}-{}.pem", self.role, self.name));
        let key = self.ca_dir.join("ca.key");
        if !key.exists() {
            let text = format!("{} contains no CA: create one first", self.ca_dir.display());
            return Err(Failure::failed(text).into());
        }
        let would = format!("issue a certificate for {} {}", self.role, self.name);
        Ok(Plan::new(would, format!("{} {}", file.display(), super::there(&file))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Issued {
            role: "member".into(),
            name: "c1".into(),
            ca_file: "tls/ca.pem".into(),
            cert_file: "tls/member-c1.pem".into(),
            key_file: "tls/member-c1.key".into(),
        };
        crate::golden::report("cert-issue.txt", &report);
    }
}

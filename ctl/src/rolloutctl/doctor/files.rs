//! The certificate files of a daemon before it starts.
//!
//! Invariant: a file that the daemon would refuse at its start is refused here. Absent: a connection.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rollout_proto::{ClientTls, Role, Security, ServerTls, TlsFiles, pki};

use super::finding::Finding;
use super::{DoctorArgs, life};
use crate::rolloutctl::status::fix;

/// What the files must prove.
pub(super) struct CertRequirement<'a> {
    pub(super) role: Role,
    pub(super) name: &'a str,
    /// Hosts under which a member is dialed.
    pub(super) hosts: Vec<&'a str>,
}

pub(super) fn now_unix() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Checks that the files exist, match, and name the right identity, and how long they are valid.
pub(super) fn check(
    files: &TlsFiles,
    wanted: &CertRequirement<'_>,
    args: &DoctorArgs,
) -> Vec<Finding> {
    let check = "certificate";
    let issue = fix::issue(wanted.role.as_str(), wanted.name, &wanted.hosts);
    let issue = format!("{issue}, with the CA in DIR");
    let security = Security::Mtls(files.clone());
    let usable = match wanted.role {
        Role::Member => ServerTls::load(&security).map(drop),
        _ => ClientTls::load(&security).map(drop),
    };
    if let Err(error) = usable {
        let why = "the daemon does not start with these files";
        return vec![Finding::fail(check, error.to_string(), why, issue)];
    }
    let info = match pki::inspect(&files.cert) {
        Ok(info) => info,
        Err(error) => {
            return vec![Finding::fail(check, error.to_string(), "every peer refuses it", issue)];
        }
    };
    let mut findings = Vec::new();
    let named = info.identity.as_ref();
    match named.filter(|id| id.role == wanted.role && id.name == wanted.name) {
        Some(id) => findings.push(Finding::ok(check, format!("names {} {}", id.role, id.name))),
        None => {
            let found = named.map_or("names no identity".to_owned(), |id| {
                format!("names {} {}", id.role, id.name)
            });
            let why = format!("it must name {} {}", wanted.role, wanted.name);
            findings.push(Finding::fail(check, found, why, issue.clone()));
        }
    }
    // An address has several spellings; a certificate has the canonical one.
    let san = |host: &str| match host.parse::<IpAddr>() {
        Ok(ip) => format!("ip:{ip}"),
        Err(_) => format!("dns:{host}"),
    };
    let has = |host: &str| info.sans.contains(&san(host));
    let missing: Vec<&str> = wanted.hosts.iter().copied().filter(|host| !has(host)).collect();
    match missing[..] {
        [] if wanted.hosts.is_empty() => {}
        [] => {
            findings.push(Finding::ok(check, format!("is valid for {}", wanted.hosts.join(", "))))
        }
        _ => findings.push(Finding::fail(
            check,
            format!("is not valid for {}", missing.join(", ")),
            "clients that connect by that name refuse the member",
            issue.clone(),
        )),
    }
    findings.push(life(&files.cert.display().to_string(), &info, args, &issue));
    findings.extend(authority(&files.ca, args));
    findings
}

/// The authorities in a bundle: the first to expire counts.
fn authority(ca: &Path, args: &DoctorArgs) -> Option<Finding> {
    let all = pki::inspect_all(ca).ok()?;
    let first = all.iter().min_by_key(|info| info.validity.not_after_unix)?;
    let what = match all.len() {
        1 => format!("CA {}", ca.display()),
        n => format!("the first of {n} CAs in {}", ca.display()),
    };
    let todo = "add a new CA to the bundle on all hosts before this one expires";
    Some(life(&what, first, args, todo))
}

/// The three files of a configuration, if it names all.
pub(super) fn tls_files(
    ca: Option<&str>,
    cert: Option<&str>,
    key: Option<&str>,
) -> Option<TlsFiles> {
    let path = |text: Option<&str>| text.map(PathBuf::from);
    Some(TlsFiles { ca: path(ca)?, cert: path(cert)?, key: path(key)? })
}

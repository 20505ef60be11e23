//! The certificates of a development cluster: one authority, one identity per process and role.
//!
//! Invariant: keys stay as they are across restarts; a certificate that expires within a month is issued again.
//! Absent: revocation; removing the directory forgets the authority.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use rollout_proto::{Role, TlsFiles, pki};

use super::layout::Layout;

const DAYS: u32 = 365;
const RENEW_BEFORE_S: i64 = 30 * 86_400;
/// The name in the certificates that `client.toml` and `admin.toml` use.
pub(super) const PERSON: &str = "dev";

/// Creates the authority if it is missing.
///
/// # Errors
/// Its files cannot be written or read.
pub(super) fn authority(layout: &Layout) -> anyhow::Result<()> {
    pki::init_ca(&layout.ca(), "rollout-dev").context("cannot create the development authority")?;
    Ok(())
}

/// The certificate of one identity, issued if it is missing or about to expire.
///
/// # Errors
/// It cannot be issued.
pub fn identity(layout: &Layout, role: Role, name: &str) -> anyhow::Result<TlsFiles> {
    let files = layout.tls_files(&role.to_string(), name);
    if lasts(&files) {
        return Ok(files);
    }
    let request = pki::IssueRequest {
        role,
        name: name.to_owned(),
        namespaces: Vec::new(),
        dns_names: vec!["localhost".into()],
        ip_addrs: vec![std::net::Ipv4Addr::LOCALHOST.into(), std::net::Ipv6Addr::LOCALHOST.into()],
        days: DAYS,
    };
    pki::issue(&layout.ca(), &request, &layout.tls())
        .with_context(|| format!("cannot issue the certificate of {role} {name}"))
}

fn lasts(files: &TlsFiles) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs().cast_signed());
    files.ca.is_file()
        && files.key.is_file()
        && pki::inspect(&files.cert)
            .is_ok_and(|info| info.validity.not_after_unix - now > RENEW_BEFORE_S)
}

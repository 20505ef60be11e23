//! Certificates for thousands of workers: one identity each, one key for all.
//!
//! Invariant: the authority of the cluster under measurement signs each, so members check them like any others. All
//! share a key because generating ten thousand keys measures nothing. Absent: fsyncs; the files are
//! temporary.

use std::path::Path;

use anyhow::Context as _;
use rollout_proto::pki::{self, IntermediateCa, IssuerFiles, RequestedKey};
use rollout_proto::{Identity, Role};

use super::worker::{name, tls_files};
use crate::dev::layout::Layout;

const LIFETIME_S: u64 = 24 * 60 * 60;

/// Writes the certificates of workers 0 to `workers` into `out`.
///
/// # Errors
/// The authority's files, or the disk.
pub(super) fn mint(layout: &Layout, out: &Path, workers: u32) -> anyhow::Result<()> {
    let authority =
        IssuerFiles { cert: layout.ca().join("ca.pem"), key: layout.ca().join("ca.key") };
    let issuer = IntermediateCa::load(&authority).context("the cluster's authority")?;
    let of_all = tls_files(out, 0);
    let request = pki::signing_request(&of_all.key)?;
    let key = RequestedKey::read(&request)?;
    std::fs::copy(&authority.cert, &of_all.ca)?;
    for number in 0..workers {
        let identity = Identity::new(Role::Worker, name(number), Vec::new())?;
        let chain = issuer.issue(&identity, &key, LIFETIME_S, 0)?;
        std::fs::write(tls_files(out, number).cert, pki::chain_pem(&chain[..1]))?;
    }
    Ok(())
}

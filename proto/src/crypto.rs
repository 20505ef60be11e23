//! The cryptography of certificates and of TLS.
//!
//! *Invariant:* it is named at every use, so that no process-wide default is needed or set.
//!
//! Absent: digests of data.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;

/// The cryptography of ring.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

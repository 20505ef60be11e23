//! Owns: how the agent reaches members, as its configuration says.
//!
//! Absent: a connection. A client connects with its first request.

use rollout_proto::{ClientConfig, DialMap, Security, TlsFiles};

use crate::config::Config;

/// How to reach members, with the certificate that the configuration names.
pub(crate) fn connect(config: &Config) -> anyhow::Result<ClientConfig> {
    let tls = &config.tls;
    let security = match (&tls.ca_file, &tls.cert_file, &tls.key_file) {
        (Some(ca), Some(cert), Some(key)) => {
            Security::Mtls(TlsFiles { ca: ca.clone(), cert: cert.clone(), key: key.clone() })
        }
        _ => Security::InsecurePlaintext,
    };
    let mut client = ClientConfig::new(config.endpoints.clone(), security);
    client.dial_map =
        DialMap::from_entries(config.dial_map.iter().map(|(name, addr)| format!("{name}={addr}")))?;
    Ok(client)
}

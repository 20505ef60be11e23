//! A member's settings for a report of a defect.
//!
//! *Invariant:* what is told is listed here key by key, so that a new setting is told only where
//! somebody has thought of it. Secrets are files, and told by their paths; a URL goes without what
//! might authenticate its bearer.

use crate::config::Config;
use rollout_proto::Security;
use serde_json::{Value, json};
use url::Url;

/// The settings as they hold, flags and environment included, under their keys.
pub(crate) fn settings(config: &Config) -> Value {
    let tls = match &config.security {
        Security::Mtls(files) => json!({
            "ca_file": files.ca, "cert_file": files.cert, "key_file": files.key,
        }),
        Security::InsecurePlaintext => json!({ "insecure_plaintext": true }),
    };
    let raft = &config.raft;
    json!({
        "name": config.name,
        "zone": config.zone,
        "data_dir": raft.data_dir,
        "log": config.log,
        "listen": {
            "client": config.listen_client, "peer": config.listen_peer, "http": config.listen_http,
        },
        "advertise": { "client": config.advertise_client, "peer": config.advertise_peer },
        "tls": tls,
        "store": { "url": bare(&config.store_url) },
        "raft": {
            "heartbeat_ms": raft.heartbeat_ms,
            "election_min_ms": raft.election_min_ms,
            "election_max_ms": raft.election_max_ms,
            "image_interval_ms": raft.image_interval_ms,
            "image_log_bytes": raft.image_log_bytes,
            "log_keep_bytes": raft.log_keep_bytes,
        },
        "worker": {
            "heartbeat_ms": config.workers.heartbeat_ms,
            "self_fence_ms": config.workers.self_fence_ms,
            "failure_ms": config.workers.failure_ms,
            "started_grace_ms": config.workers.started_grace_ms,
        },
        "events": { "bytes_max": raft.events_bytes_max, "count_max": raft.events_count_max },
        "retention": {
            "run_ttl_ms": config.retention.run_ttl_ms,
            "retention_ms": config.retention.retention_ms,
        },
        "audit": {
            "file": config.audit.file,
            "bytes_max": config.audit.bytes_max,
            "files_max": config.audit.files_max,
        },
        "autoscale": { "rows_per_slot": config.autoscale.rows_per_slot },
        "webhooks": {
            "allow": config.webhooks.allow.iter().map(|url| bare(url)).collect::<Vec<_>>(),
            "secret_file": config.webhooks.secret_file,
        },
    })
}

/// A URL without user, password, query and fragment.
fn bare(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return "not a URL".into() };
    url.set_query(None);
    url.set_fragment(None);
    // These fail where a URL can have none, and then it has none.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_goes_without_what_authenticates() {
        for (given, told) in [
            ("s3://bucket/prefix", "s3://bucket/prefix"),
            ("file:///srv/store", "file:///srv/store"),
            ("https://user:secret@host/path?sig=secret#secret", "https://host/path"),
            ("s3://key:secret@bucket/prefix", "s3://bucket/prefix"),
        ] {
            assert_eq!(bare(given), told);
        }
        assert!(!bare("no url secret").contains("secret"));
    }
}

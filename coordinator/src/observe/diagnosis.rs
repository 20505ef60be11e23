//! A member's settings in the report for a bug.
//!
//! *Invariant:* the report lists its keys explicitly, so it contains a new setting only after a developer has added it.
//! Secrets are in files, and the report has only their paths. It has URLs without any part that could be a credential.

use crate::config::{Config, EnrollmentSettings};
use rollout_proto::Security;
use rollout_telemetry::TracingSettings;
use serde_json::{Value, json};
use url::Url;

/// The effective settings, including flags and environment, under their keys.
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
        "cluster_id": raft.cluster_id.map(|id| id.to_string()),
        "data_dir": raft.data_dir,
        "log": config.log,
        "listen": {
            "client": config.listen_client, "peer": config.listen_peer, "http": config.listen_http,
        },
        "advertise": { "client": config.advertise_client, "peer": config.advertise_peer },
        "tls": tls,
        "store": {
            "url": bare(&config.store_url),
            "urls": config.store_urls.iter().map(|url| bare(url)).collect::<Vec<_>>(),
        },
        "storage": { "low_bytes": raft.disk_low_bytes, "reserve_bytes": raft.disk_reserve_bytes },
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
            "sweep_every_ms": config.retention.sweep_every_ms,
            "sweep_age_ms": config.retention.sweep_age_ms,
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
        "enrollment": config.enrollment.as_ref().map(enrollment),
        "api": config.api.as_ref().map(|api| json!({
            "listen": api.listen, "advertise": api.advertise.as_deref().map(bare),
        })),
        "tracing": tracing(&config.tracing),
        "dial_map": raft.dial_map.to_string(),
    })
}

fn enrollment(settings: &EnrollmentSettings) -> Value {
    json!({
        "listen": settings.listen,
        "issuer_cert_file": settings.issuer_cert_file,
        "issuer_key_file": settings.issuer_key_file,
        "lifetime_s": settings.lifetime_s,
    })
}

fn tracing(settings: &TracingSettings) -> Value {
    let endpoint = Some(&settings.otlp_endpoint).filter(|endpoint| !endpoint.is_empty());
    json!({
        "otlp_endpoint": endpoint.map(|endpoint| bare(endpoint)),
        "sample_ratio": settings.sample_ratio,
        "queue_spans_max": settings.queue_spans_max,
        "timeout_ms": settings.timeout_ms,
    })
}

/// A URL without user, password, query and fragment.
fn bare(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return "not a URL".into() };
    url.set_query(None);
    url.set_fragment(None);
    // These fail only for a URL that can have neither.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;
    use clap::Parser as _;
    use std::collections::BTreeSet;

    /// Keys that the effective settings do not have: a profile is replaced by its values, and TLS is configured.
    const NOT_TOLD: [&str; 3] =
        ["raft.profile", "tls.insecure_plaintext", "tls.insecure_plaintext_public"];

    fn expected_keys() -> BTreeSet<String> {
        let keys = rollout_config::keys(rollout_config::Daemon::Coordinator);
        keys.iter().map(|key| key.path.clone()).collect()
    }

    fn collect_keys(path: &str, value: &Value, into: &mut BTreeSet<String>) {
        match value {
            Value::Object(inner) => {
                let dot = if path.is_empty() { "" } else { "." };
                inner.iter().for_each(|(key, value)| {
                    collect_keys(&format!("{path}{dot}{key}"), value, into);
                });
            }
            _ => drop(into.insert(path.to_owned())),
        }
    }

    #[test]
    fn the_report_has_every_setting_and_no_secret() {
        let text = r#"
            name = "c1"
            data_dir = "/tmp/c1"
            cluster_id = "0123456789abcdef0123456789abcdef"
            [listen]
            client = "127.0.0.1:1"
            peer = "127.0.0.1:2"
            [tls]
            ca_file = "/ca"
            cert_file = "/cert"
            key_file = "/key"
            [store]
            url = "s3://key:secret@bucket/prefix"
            [enrollment]
            listen = "127.0.0.1:3"
            issuer_cert_file = "/i.pem"
            issuer_key_file = "/i.key"
            [api]
            listen = "127.0.0.1:4"
            advertise = "https://api.example.com/v1"
            [tracing]
            otlp_endpoint = "http://127.0.0.1:4317"
            [webhooks]
            secret_file = "/webhooks"
            allow = ["https://user:secret@host"]
            [dial_map]
            c2 = "127.0.0.1:9"
        "#;
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("c.toml");
        std::fs::write(&file, text).expect("written");
        let flags = Flags::parse_from(["x", "--config", file.to_str().unwrap_or_default()]);
        let settings = settings(&Config::load(flags).expect("good"));
        let mut keys = BTreeSet::new();
        collect_keys("", &settings, &mut keys);
        let mut expected = expected_keys();
        assert!(expected.len() > 40, "{expected:?}");
        for key in NOT_TOLD {
            assert!(expected.remove(key), "{key}");
        }
        assert_eq!(keys, expected);
        assert_eq!(settings["cluster_id"], "0123456789abcdef0123456789abcdef");
        assert_eq!(settings["dial_map"], "c2=127.0.0.1:9");
        assert!(!settings.to_string().contains("secret@"), "{settings}");
    }

    #[test]
    fn a_reported_url_has_no_credentials() {
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

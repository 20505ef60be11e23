//! Audit lines of handshakes that are refused because the certificate is revoked. Such a caller makes no request, so no
//! other line names it.
//!
//! *Invariant:* the caller has shown the certificate but has not proved that it has the key. These lines have a bound
//! of their own ([`super::refusals`]), so a caller that shows an old certificate cannot use up the lines of its
//! identity.

use super::AuditLog;
use rollout_proto::{ErrorCode, Identity, OnRevoked};
use serde_json::{Map, Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

impl AuditLog {
    /// The callback for a listener. It writes lines on the runtime from which this function is called, not on the
    /// listener's.
    pub(crate) fn on_revoked(self: Arc<Self>) -> OnRevoked {
        let runtime = tokio::runtime::Handle::current();
        Arc::new(move |identity, addr| {
            // A place of all unauthenticated callers together: the caller has not proved that it is this identity.
            let Some(place) = self.room.take(&Identity::unenrolled()) else {
                self.refusals.count_unlogged(&counted(identity), Instant::now());
                return;
            };
            if let Some(line) = self.revoked_line(identity, addr) {
                let log = self.clone();
                runtime.spawn(async move { log.write_in(place, line).await });
            }
        })
    }

    fn revoked_line(&self, identity: &Identity, addr: SocketAddr) -> Option<Map<String, Value>> {
        let unlogged = self.refusals.line_due(&counted(identity), Instant::now())?;
        let line = json!({
            "time": OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default(),
            "member": self.member(),
            "identity": identity.to_string(),
            "role": identity.role.as_str(),
            "address": addr.to_string(),
            "method": "handshake",
            "outcome": "refused",
            "code": ErrorCode::CertificateRevoked.code(),
            "message": "the certificate is revoked",
            "untold": (unlogged > 0).then_some(unlogged),
        });
        match line {
            Value::Object(fields) => Some(fields),
            _ => None,
        }
    }
}

/// The name under which refusals of these handshakes are counted.
fn counted(identity: &Identity) -> String {
    format!("handshake of {identity}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Audit;
    use rollout_proto::Role;
    use std::time::Duration;

    #[tokio::test]
    async fn a_refused_certificate_has_a_line_and_many_refusals_have_few_lines() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("audit.log");
        let config = Audit { file: Some(file.clone()), ..Audit::default() };
        let log = Arc::new(AuditLog::open("c1", &config).expect("open"));
        let refused = log.on_revoked();
        let ann = Identity::new(Role::Client, "ann", vec![]).expect("an identity");
        let addr = "10.0.0.7:5000".parse().expect("an address");
        (0..1000).for_each(|_| refused(&ann, addr));
        let begun = Instant::now();
        let lines = loop {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            let lines: Vec<_> = text.lines().map(str::to_owned).collect();
            if lines.len() >= 10 {
                break lines;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{text}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        // Another window of one second may have started meanwhile.
        assert!(lines.len() <= 30, "{} lines", lines.len());
        let line: Value = serde_json::from_str(&lines[0]).expect("JSON");
        for (key, value) in [
            ("identity", "client/ann"),
            ("address", "10.0.0.7:5000"),
            ("method", "handshake"),
            ("outcome", "refused"),
            ("code", "RO-3013"),
        ] {
            assert_eq!(line[key], value, "{line}");
        }
    }
}

//! Settings of the section `[tracing]`, the same for every daemon.
//!
//! *Invariant:* settings that passed [`TracingSettings::check`] can be used; only an unreachable collector remains as a
//! failure.

use std::ops::RangeInclusive;
use std::time::Duration;

use http::Uri;
use http::uri::Scheme;
use serde::Deserialize;

/// Bounds of the number of waiting spans.
const QUEUE_SPANS: RangeInclusive<usize> = 1..=100_000;
/// Bounds of the time that a collector may take for a batch.
const TIMEOUT_MS: RangeInclusive<u64> = 10..=60_000;

/// Where spans go, and of which traces.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracingSettings {
    /// The collector's OTLP port for gRPC, such as `http://127.0.0.1:4317`; empty: nothing is recorded.
    pub otlp_endpoint: String,
    /// The share of traces that is recorded, 0 to 1. It depends on the trace's id, so all processes with the same
    /// ratio record the same traces.
    pub sample_ratio: f64,
    /// The most spans that wait or are being sent; further ones are dropped.
    pub queue_spans_max: usize,
    /// How long the collector may take for a batch, in milliseconds; then its spans are dropped.
    pub timeout_ms: u64,
}

impl Default for TracingSettings {
    fn default() -> Self {
        Self {
            otlp_endpoint: String::new(),
            sample_ratio: 1.0,
            queue_spans_max: 4096,
            timeout_ms: 5000,
        }
    }
}

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct SettingError {
    /// The key with its section.
    pub key: &'static str,
    /// What is wrong, and which value would be accepted.
    pub reason: String,
}

impl TracingSettings {
    /// Overrides the file with a flag or the environment. Empty text, as from a variable without a value, counts as
    /// unset.
    pub fn lay_endpoint(&mut self, endpoint: Option<&str>) {
        if let Some(endpoint) = endpoint.filter(|endpoint| !endpoint.is_empty()) {
            endpoint.clone_into(&mut self.otlp_endpoint);
        }
    }

    /// Refuses invalid settings.
    ///
    /// # Errors
    /// An endpoint that is not `http://HOST:PORT`, and numbers out of bounds.
    pub fn check(&self) -> Result<(), SettingError> {
        let invalid = |key, reason: String| Err(SettingError { key, reason });
        if !self.otlp_endpoint.is_empty() {
            self.check_endpoint()
                .map_err(|reason| SettingError { key: "tracing.otlp_endpoint", reason })?;
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            let reason = format!("{} is not in 0 to 1", self.sample_ratio);
            return invalid("tracing.sample_ratio", reason);
        }
        if !QUEUE_SPANS.contains(&self.queue_spans_max) {
            let (min, max) = QUEUE_SPANS.into_inner();
            let reason = format!("{} is not in {min} to {max}", self.queue_spans_max);
            return invalid("tracing.queue_spans_max", reason);
        }
        if !TIMEOUT_MS.contains(&self.timeout_ms) {
            let (min, max) = TIMEOUT_MS.into_inner();
            let reason = format!("{} is not in {min} to {max}", self.timeout_ms);
            return invalid("tracing.timeout_ms", reason);
        }
        Ok(())
    }

    fn check_endpoint(&self) -> Result<(), String> {
        let text = &self.otlp_endpoint;
        let wanted = "a collector's OTLP port for gRPC is wanted, such as http://127.0.0.1:4317";
        let uri: Uri = text.parse().map_err(|error| format!("{text:?}: {error}; {wanted}"))?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(format!(
                "{text}: spans are sent without TLS. Run a collector beside this process, as \
                 http://127.0.0.1:4317, and let that one speak TLS to others"
            ));
        }
        let bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let named = uri.host().is_some_and(|host| !host.is_empty());
        if uri.scheme() != Some(&Scheme::HTTP) || !named || !bare {
            return Err(format!("{text:?}: {wanted}"));
        }
        Ok(())
    }

    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let settings: TracingSettings = toml::from_str(text).unwrap();
        settings.check().unwrap_err().to_string()
    }

    #[test]
    fn it_is_off_by_default_and_a_collector_is_enough() {
        let none: TracingSettings = toml::from_str("").unwrap();
        assert_eq!((none.check(), none.otlp_endpoint.as_str()), (Ok(()), ""));
        for endpoint in ["http://127.0.0.1:4317", "http://[::1]:4317/", "http://collector"] {
            let text = format!("otlp_endpoint = {endpoint:?}");
            let some: TracingSettings = toml::from_str(&text).unwrap();
            assert_eq!(some.check(), Ok(()), "{endpoint}");
        }
        assert!(toml::from_str::<TracingSettings>("otlp_endpont = 'x'").is_err());
    }

    #[test]
    fn unusable_settings_are_refused_by_name() {
        let tls = refused("otlp_endpoint = 'https://collector.example:4317'");
        assert!(tls.contains("tracing.otlp_endpoint") && tls.contains("without TLS"), "{tls}");
        for endpoint in ["127.0.0.1:4317", "grpc://h:1", "http://h/v1/traces", "not a uri", "/x"] {
            let error = refused(&format!("otlp_endpoint = {endpoint:?}"));
            assert!(error.contains("http://127.0.0.1:4317"), "{error}");
        }
        for (key, values) in [
            ("sample_ratio", ["-0.1", "1.1", "nan"]),
            ("queue_spans_max", ["0", "100001", "1000000"]),
            ("timeout_ms", ["0", "9", "60001"]),
        ] {
            for value in values {
                let error = refused(&format!("{key} = {value}"));
                assert!(error.starts_with(&format!("tracing.{key}: ")), "{error}");
            }
        }
    }

    #[test]
    fn the_environment_overrides_the_file_unless_it_is_empty() {
        let mut settings = TracingSettings::default();
        settings.lay_endpoint(Some("http://a:1"));
        settings.lay_endpoint(Some(""));
        settings.lay_endpoint(None);
        assert_eq!(settings.otlp_endpoint, "http://a:1");
    }
}

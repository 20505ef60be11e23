//! Settings of the section `[tracing]`, the same for every daemon.
//!
//! *Invariant:* settings that passed [`TracingSettings::check`] can be used; only an unreachable collector remains as a
//! failure.

use http::Uri;
use http::uri::Scheme;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bounds::{self, SettingError};

/// Where spans go, and of which traces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TracingSettings {
    /// An OpenTelemetry collector's port for gRPC, `http://HOST:PORT`; empty: no spans are sent.
    ///
    /// Usually port 4317. It receives [spans](events-and-audit.md#traces).
    #[schemars(extend("x-flag" = "--otlp-endpoint", "x-env" = "ROLLOUT_OTLP_ENDPOINT"))]
    pub otlp_endpoint: String,
    /// Fraction of traces that is recorded, 0 to 1.
    ///
    /// The trace's ID decides: set the same value on all members and workers, so that they record the same traces.
    pub sample_ratio: f64,
    /// Maximum number of spans queued or being sent; more are dropped.
    #[schemars(range(min = 1, max = 100_000))]
    pub queue_spans_max: usize,
    /// Time limit for the collector to accept a batch; then its spans are dropped.
    #[schemars(range(min = 10, max = 60_000))]
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
        if !self.otlp_endpoint.is_empty() {
            self.check_endpoint()
                .map_err(|reason| SettingError::new("tracing.otlp_endpoint", reason))?;
        }
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            let reason = format!("{} is not in 0 to 1", self.sample_ratio);
            return Err(SettingError::new("tracing.sample_ratio", reason));
        }
        bounds::check(self).map_err(|error| SettingError {
            key: format!("tracing.{}", error.key),
            reason: error.reason,
        })
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

//! Refuses missing values, values out of bounds, and values that contradict each other.

use url::Url;

use super::{
    ComputeConfig, Config, ConfigError, EnrollmentConfig, SLOTS_AUTO, SLOTS_MAX, StoreGatewayConfig,
};
use crate::bounds;

fn invalid(key: &str, reason: impl Into<String>) -> Result<(), ConfigError> {
    Err(ConfigError::invalid(key, reason))
}

impl Config {
    /// Refuses missing and out-of-bounds values.
    ///
    /// # Errors
    /// The key, what is wrong, and what would be valid.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.name.is_empty() || self.name.len() > 128 {
            return invalid("name", "a worker needs a name of 1 to 128 bytes (--name)");
        }
        if self.data_dir.as_os_str().is_empty() {
            return invalid("data_dir", "a worker needs its own data directory (--data-dir)");
        }
        if self.endpoints.is_empty() {
            return invalid("endpoints", "give at least one member as host:port (--endpoint)");
        }
        self.check_tls()?;
        bounds::check(self)?;
        let timing = &self.timing;
        if timing.leader_silent_ms >= timing.self_fence_ms {
            let reason = format!(
                "{} must be below timing.self_fence_ms = {}",
                timing.leader_silent_ms, timing.self_fence_ms
            );
            return invalid("timing.leader_silent_ms", reason);
        }
        self.compute.check()?;
        self.store_gateway.as_ref().map_or(Ok(()), StoreGatewayConfig::check)?;
        self.tracing.check()?;
        if self.engine.is_empty() {
            return invalid("engine", "give at least one [[engine]] block (or --engine mock)");
        }
        for engine in &self.engine {
            engine.check()?;
        }
        let counted = self.engine.iter().filter(|engine| engine.slots != SLOTS_AUTO);
        let slots: usize = counted.map(|engine| engine.slots as usize).sum();
        if slots > SLOTS_MAX {
            return invalid("engine.slots", format!("{slots} slots: at most 64 are allowed"));
        }
        Ok(())
    }

    fn check_tls(&self) -> Result<(), ConfigError> {
        let tls = &self.tls;
        let files = [&tls.ca_file, &tls.cert_file, &tls.key_file];
        let given = files.iter().filter(|file| file.is_some()).count();
        if let Some(enrollment) = &self.enrollment {
            return match (given, tls.insecure_plaintext) {
                (0, false) => enrollment.check(),
                _ => invalid(
                    "tls",
                    "[enrollment] replaces ca_file, cert_file and key_file, and needs TLS",
                ),
            };
        }
        let reason = match (given, tls.insecure_plaintext) {
            (3, false) | (0, true) => return Ok(()),
            (0, false) => {
                "ca_file, cert_file and key_file are needed, or [enrollment], or insecure_plaintext = true"
            }
            (_, true) => "insecure_plaintext contradicts the certificate files",
            (_, false) => "ca_file, cert_file and key_file are needed together",
        };
        invalid("tls", reason)
    }
}

impl EnrollmentConfig {
    fn check(&self) -> Result<(), ConfigError> {
        if self.token_file.as_os_str().is_empty() {
            return invalid("enrollment.token_file", "name the file with the join token");
        }
        if self.endpoints.is_empty() {
            return invalid(
                "enrollment.endpoints",
                "give the members' enrollment addresses, host:port",
            );
        }
        Ok(())
    }
}

impl ComputeConfig {
    /// Its address is usable.
    fn check(&self) -> Result<(), ConfigError> {
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        let usable = Url::parse(endpoint)
            .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        match usable {
            true => Ok(()),
            false => invalid(
                "compute.endpoint",
                format!("{endpoint:?} is not http://host or http://host:port"),
            ),
        }
    }
}

impl StoreGatewayConfig {
    /// A port that other hosts can reach needs a flag that allows it.
    fn check(&self) -> Result<(), ConfigError> {
        if self.job.is_empty() {
            return invalid("store_gateway.job", "name the job whose store it is");
        }
        if !self.listen.ip().is_loopback() && !self.insecure_tcpstore {
            return invalid(
                "store_gateway.listen",
                "TCPStore has no TLS: listen on 127.0.0.1, or set insecure_tcpstore = true",
            );
        }
        Ok(())
    }
}

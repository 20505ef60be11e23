//! Owns: an agent's settings: file, environment and flags merged into one checked [`Config`].
//!
//! Invariant: a `Config` that [`load`] returned is complete and within bounds, and its slots have their devices.
//! Absent: the settings themselves, which crate `rollout-config` declares; what the leader decides (heartbeat interval,
//! store URL).

mod devices;
mod flags;

use std::path::Path;

pub use rollout_config::worker::{
    CacheConfig, ComputeConfig, ComputeProvider, Config, ConfigError, CreditConfig, EngineConfig,
    EngineKind, EnrollmentConfig, PartConfig, SLOTS_MAX, StoreConfig, StoreGatewayConfig, Tail,
    TimingConfig, TlsConfig,
};
pub(crate) use rollout_config::worker::{SLOT_ROWS_MAX, server_url};

pub(crate) use self::devices::VISIBLE;
pub use self::flags::Flags;

/// Rows that a slot may ask for in one pull; the ledger's own bound.
pub const CREDIT_ROWS_MAX: u32 = 4096;

// The settings know no storage: these are its bounds.
const _: () = {
    use rollout_config::worker::{PART_BYTES, PART_ROWS, PART_ROWS_MAX};
    assert!(PART_ROWS == rollout_storage::PART_ROWS_CLOSE);
    assert!(PART_ROWS_MAX == rollout_storage::PART_ROWS_MAX);
    assert!(PART_BYTES == rollout_storage::PART_BYTES_CLOSE);
};

/// Reads the file that the flags name, applies the flags, checks the result, and assigns devices to slots.
///
/// # Errors
/// A file that cannot be read, an unknown key, a missing or out-of-bounds value, and devices that this host does not
/// have.
pub fn load(flags: &Flags) -> Result<Config, ConfigError> {
    let mut config = match &flags.config {
        Some(path) => read(path)?,
        None => Config::default(),
    };
    flags.apply(&mut config);
    config.check()?;
    devices::assign(&mut config, &devices::Host::here())?;
    // `"auto"` may have produced too many slots.
    config.check()?;
    Ok(config)
}

fn read(path: &Path) -> Result<Config, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    Config::parse(&text, &path.display().to_string())
}

#[cfg(test)]
mod tests;

//! The worker agent: it pulls rows from the leader, runs them on this host's engines, and commits each result once.
//!
//! One [`run`] is one agent with several slots. Each slot has an engine, a queue no longer than its credit, and a
//! spool of finished rows; a session keeps the agent registered with the leader. A slot's finished rows survive the
//! process; its committed results survive everything.
//!
//! Invariant: a row is started only under a live lease and an answered heartbeat, and reported only when its part is
//! durable. A crash may repeat execution; the ledger decides acceptance, and accepts a row once.

mod agent;
mod agent_error;
mod backoff;
mod combiner;
mod compute;
mod config;
mod connect;
mod disk;
mod drain;
mod engine;
mod enrollment;
mod fence;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod lease_table;
mod leased_rows;
mod metrics;
mod offer;
mod part;
mod program;
mod run;
mod segments;
mod session;
mod slot;
mod spool;
mod store_gateway;
mod store_probe;
mod stores;
mod telemetry;
mod versions;

pub use agent::{Drained, run};
pub use agent_error::AgentError;
pub use compute::{Cloud, ComputeHint, Notice};
pub use config::{
    CREDIT_ROWS_MAX, CacheConfig, ComputeConfig, ComputeProvider, Config, ConfigError,
    CreditConfig, EngineConfig, EngineKind, EnrollmentConfig, Flags, PartConfig, SLOTS_MAX,
    StoreConfig, StoreGatewayConfig, Tail, TimingConfig, TlsConfig, load as load_config,
};
pub use drain::{DrainOrder, Drains};
pub use program::main;

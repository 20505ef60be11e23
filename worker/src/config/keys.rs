//! Owns: the known keys of the file, and the refusal of all others.
//!
//! Invariant: a file may use a configuration field only if it is listed here. The example file names each of them.
//! Absent: types and bounds.

use rollout_config::nearest::nearest;
use toml::{Table, Value};

use super::ConfigError;

const ROOT: &[&str] = &[
    "name",
    "namespace",
    "data_dir",
    "endpoints",
    "labels",
    "tls",
    "enrolment",
    "dial_map",
    "store",
    "credit",
    "part",
    "timing",
    "cache",
    "compute",
    "store_gateway",
    "tracing",
    "metrics_listen",
    "address",
    "engine",
];
const BLOCKS: &[(&str, &[&str])] = &[
    ("tls", &["ca_file", "cert_file", "key_file", "insecure_plaintext"]),
    ("enrolment", &["token_file", "endpoints"]),
    ("store", &["urls"]),
    ("credit", &["rows", "tokens"]),
    ("part", &["rows", "bytes", "linger_ms"]),
    (
        "timing",
        &[
            "self_fence_ms",
            "leader_silent_ms",
            "drain_ms",
            "probe_ms",
            "register_refused_ms",
            "store_refused_ms",
        ],
    ),
    ("cache", &["bytes"]),
    ("compute", &["provider", "endpoint", "poll_ms"]),
    ("store_gateway", &["job", "round", "listen", "insecure_tcpstore", "allow_uids"]),
    ("tracing", &["otlp_endpoint", "sample_ratio", "queue_spans_max", "timeout_ms"]),
];
const ENGINE: &[&str] = &["kind", "slots", "models", "tasks", "concurrency", "labels"];
const MOCK: &[&str] = &[
    "loras",
    "latency_ms_min",
    "latency_ms_max",
    "seed",
    "tail",
    "tail_alpha",
    "side_file",
    "once_dir",
    "fail_rows",
    "process",
    "program",
    "pass_env",
    "exit_at_start",
    "exit_at_row",
    "stall_timeout_ms",
    "start_timeout_ms",
];
const OPENAI: &[&str] = &["base_url", "api_key_env", "timeout_ms", "served_model"];
const VLLM: &[&str] = &[
    "loras",
    "python",
    "model",
    "revision",
    "engine_args",
    "env",
    "pass_env",
    "gpus_per_slot",
    "devices",
    "tensor_parallel_size",
    "stall_timeout_ms",
    "start_timeout_ms",
];

/// Every key of the file, without its path.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    let blocks = BLOCKS.iter().flat_map(|(_, keys)| keys.iter());
    ROOT.iter().chain(blocks).chain(ENGINE).chain(MOCK).chain(OPENAI).chain(VLLM).copied()
}

/// Refuses the first unknown key.
pub(super) fn check(table: &Table, origin: &str) -> Result<(), ConfigError> {
    check_table(table, "", ROOT, origin)?;
    for (name, known) in BLOCKS {
        if let Some(Value::Table(block)) = table.get(*name) {
            check_table(block, &format!("{name}."), known, origin)?;
        }
    }
    let Some(Value::Array(engines)) = table.get("engine") else { return Ok(()) };
    for engine in engines {
        let Value::Table(block) = engine else { continue };
        let own = match block.get("kind").and_then(Value::as_str) {
            Some("mock") => MOCK,
            Some("openai") => OPENAI,
            Some("vllm") => VLLM,
            _ => &[],
        };
        check_table(block, "engine.", &[ENGINE, own].concat(), origin)?;
    }
    Ok(())
}

fn check_table(
    table: &Table,
    prefix: &str,
    known: &[&str],
    origin: &str,
) -> Result<(), ConfigError> {
    let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
    let nearest = nearest(key, known.iter().copied()).map(|known| format!("{prefix}{known}"));
    let key = format!("{prefix}{key}");
    let known = known.iter().map(|known| (*known).to_owned()).collect();
    Err(ConfigError::UnknownKey { origin: origin.to_owned(), key, nearest, known })
}

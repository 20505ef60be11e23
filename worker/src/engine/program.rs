//! Owns: the process that serves a slot: its program, arguments and environment.
//!
//! Invariant: the processes of two slots share nothing that they write to. The operator's `env` overrides the
//! variables set here.
//! Absent: starting it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use rollout_proto::programs;

use super::environment::withheld;
use super::host::{Gpus, HostConfig, KILL_TIMEOUT, Program, crash_file};
use super::xid::Xids;
use crate::config::{EngineConfig, VISIBLE};
use crate::engine::SlotPlace;

/// First port that vLLM tries; each slot has its own range.
const PORT_FIRST: u32 = 29_600;
const PORTS_PER_SLOT: u32 = 64;

/// The mock engine is this same program, in a separate process.
pub(super) fn mock(config: &EngineConfig, slot: u32, dir: &Path) -> anyhow::Result<HostConfig> {
    let (path, name) = match &config.program {
        Some(path) => (path.clone(), None),
        None => {
            let own = programs::own().context("the path of this program is unknown")?;
            (own.path, own.name)
        }
    };
    let args = name.into_iter().chain(["mock-engine"]).map(str::to_owned).collect();
    host(config, slot, dir, path, args, Vec::new())
}

/// vLLM runs in the Python of its own environment, so that interpreter and libraries match.
pub(super) fn vllm(
    config: &EngineConfig,
    slot: SlotPlace,
    dir: &Path,
) -> anyhow::Result<HostConfig> {
    let python = config.python.clone().context("engine.python is missing")?;
    let args = ["-m", "rollout.engine_host"].map(str::to_owned).to_vec();
    let cache = std::path::absolute(dir).context("the data directory")?;
    let cache = cache.join(format!("slot-{}.cache", slot.number));
    let of = |name: &str| cache.join(name).display().to_string();
    let mut env = vec![
        ("PYTHONUNBUFFERED".to_owned(), "1".to_owned()),
        ("VLLM_PORT".to_owned(), (PORT_FIRST + slot.number * PORTS_PER_SLOT).to_string()),
        ("VLLM_CACHE_ROOT".to_owned(), of("vllm")),
        ("TORCHINDUCTOR_CACHE_DIR".to_owned(), of("inductor")),
        ("TRITON_CACHE_DIR".to_owned(), of("triton")),
    ];
    if let Some(devices) = config.assigned.get(slot.of_block as usize) {
        env.push((VISIBLE.to_owned(), devices.join(",")));
        // CUDA would number the fastest device first; the driver's errors, like `nvidia-smi`, number by bus order.
        // Inherited numbers use the order of the environment that set them.
        if std::env::var_os("CUDA_DEVICE_ORDER").is_none() {
            env.push(("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned()));
        }
    }
    env.extend(config.env.clone());
    let gpus = Gpus { devices: visible(&env), xids: Xids::of_this_host() };
    Ok(HostConfig { gpus: Some(gpus), ..host(config, slot.number, dir, python, args, env)? })
}

/// The devices that the engine sees, if its environment lists them by number; else none, which means all.
fn visible(env: &[(String, String)]) -> Vec<u32> {
    let named = env.iter().rev().find(|(key, _)| key == VISIBLE);
    let counted =
        named.map(|(_, list)| list.split(',').map(|device| device.trim().parse()).collect());
    counted.and_then(Result::ok).unwrap_or_default()
}

fn host(
    config: &EngineConfig,
    slot: u32,
    dir: &Path,
    path: PathBuf,
    args: Vec<String>,
    env: Vec<(String, String)>,
) -> anyhow::Result<HostConfig> {
    let dir = std::path::absolute(dir).context("the data directory")?;
    Ok(HostConfig {
        program: Program {
            path,
            args,
            env,
            withheld: withheld(std::env::vars_os().map(|(name, _)| name), &config.pass_env),
            slot,
            crash_file: crash_file(&dir, slot),
        },
        options: serde_json::to_string(config)?,
        gpus: None,
        stall_timeout: Duration::from_millis(config.stall_timeout_ms),
        start_timeout: Duration::from_millis(config.start_timeout_ms),
        kill_timeout: KILL_TIMEOUT,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineKind;

    #[test]
    fn slots_share_neither_devices_nor_ports_nor_caches_and_the_operator_has_the_last_word() {
        let mut config = EngineConfig::new(EngineKind::Vllm);
        config.python = Some("/opt/vllm/bin/python".into());
        config.assigned = vec![vec!["5".into(), "6".into()], vec!["2".into(), "3".into()]];
        config.env.insert("VLLM_PORT".into(), "1".into());
        let of = |of_block| {
            let place = SlotPlace { number: 7 + of_block, of_block };
            vllm(&config, place, Path::new("/data")).unwrap().program
        };
        let value = |program: &Program, name: &str| {
            let mut found =
                program.env.iter().filter(|(key, _)| key == name).map(|(_, v)| v.clone());
            found.next_back().unwrap()
        };
        let (one, two) = (of(0), of(1));
        assert_eq!(value(&one, VISIBLE), "5,6");
        assert_eq!(value(&two, VISIBLE), "2,3");
        assert_eq!(visible(&two.env), [2, 3], "whose errors are its own");
        let named = |list: &str| visible(&[(VISIBLE.to_owned(), list.to_owned())]);
        assert_eq!(named("5, 7"), [5, 7]);
        assert_eq!(named("GPU-8932f937"), [0; 0], "which of them it has is not known");
        assert_eq!(value(&two, "VLLM_PORT"), "1");
        assert_ne!(value(&one, "VLLM_CACHE_ROOT"), value(&two, "VLLM_CACHE_ROOT"));
        assert_ne!(one.crash_file, two.crash_file);
        assert_eq!(one.args, ["-m", "rollout.engine_host"]);
    }
}

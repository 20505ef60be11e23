//! Owns: which of the host's devices each slot has.
//!
//! Invariant: no device is assigned twice. A number is an index into the agent's own devices: if the agent inherited
//! `CUDA_VISIBLE_DEVICES`, its entries are the devices, whether they are numbers, UUIDs or MIG instances, and a slot's
//! process gets those entries. Slots without devices of their own (`gpus_per_slot = 0`, neither `devices` nor `slots =
//! "auto"`) are left to vLLM.
//! Absent: what a device can do.

use std::collections::BTreeSet;

use rollout_config::worker::{Device, SLOTS_AUTO};

use super::{Config, ConfigError, EngineConfig, EngineKind};

/// CUDA's variable for the devices that a process may use.
pub(crate) const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
/// Where NVIDIA's kernel module lists its devices.
const DRIVER_LIST: &str = "/proc/driver/nvidia/gpus";

/// The devices that this process may use, as `CUDA_VISIBLE_DEVICES` names them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Host {
    entries: Vec<String>,
    /// The entries were inherited, so there are no others.
    inherited: bool,
}

impl Host {
    pub(super) fn here() -> Self {
        let count = std::fs::read_dir(DRIVER_LIST).map_or(0, |list| list.flatten().count());
        Self::of(std::env::var(VISIBLE).ok().as_deref(), count)
    }

    /// From the inherited list, or from the driver's count.
    fn of(visible: Option<&str>, count: usize) -> Self {
        match visible {
            // CUDA ignores everything after an invalid entry.
            Some(list) => Self {
                entries: list
                    .split(',')
                    .map(str::trim)
                    .take_while(|entry| !entry.is_empty() && !entry.starts_with('-'))
                    .map(str::to_owned)
                    .collect(),
                inherited: true,
            },
            None => Self { entries: (0..count).map(|n| n.to_string()).collect(), inherited: false },
        }
    }

    /// The device with a number. It may exist even if the driver does not list it.
    fn numbered(&self, number: usize) -> Result<String, String> {
        match self.entries.get(number) {
            Some(entry) => Ok(entry.clone()),
            None if !self.inherited && self.entries.is_empty() => Ok(number.to_string()),
            None => Err(format!("there is no device {number}, only {}", self.entries.len())),
        }
    }

    fn named(&self, device: &Device) -> Result<String, String> {
        match device {
            Device::Number(number) => self.numbered(*number as usize),
            Device::Name(name) if self.inherited && !self.entries.contains(name) => {
                Err(format!("{name} is not in the inherited {VISIBLE}"))
            }
            Device::Name(name) => Ok(name.clone()),
        }
    }
}

/// Devices per slot if it has its own; 0: vLLM chooses.
fn devices_each(engine: &EngineConfig) -> usize {
    let sized = |name: &str| engine.engine_args.get(name).and_then(serde_json::Value::as_u64);
    let parallel = sized("tensor_parallel_size").unwrap_or(engine.tensor_parallel_size.into())
        * sized("pipeline_parallel_size").unwrap_or(1);
    match (engine.gpus_per_slot, engine.slots == SLOTS_AUTO || !engine.devices.is_empty()) {
        (0, false) => 0,
        (0, true) => parallel.max(1) as usize,
        (each, _) => each as usize,
    }
}

/// Assigns devices to every slot, and decides how many slots `"auto"` is.
///
/// # Errors
/// Devices are missing, left over, or named twice.
pub(super) fn assign(config: &mut Config, host: &Host) -> Result<(), ConfigError> {
    let invalid = |reason: String| ConfigError::invalid("engine.devices", reason);
    let mut taken = BTreeSet::new();
    let vllm = |engine: &&mut EngineConfig| engine.kind == EngineKind::Vllm;
    for engine in config.engine.iter_mut().filter(vllm).filter(|e| !e.devices.is_empty()) {
        let named = engine.devices.iter().map(|device| host.named(device));
        let named = named.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
        if let Some(twice) = named.iter().find(|device| !taken.insert((*device).clone())) {
            return Err(invalid(format!("device {twice} is named twice")));
        }
        let each = devices_each(engine);
        if named.len() % each != 0 {
            let reason = format!("{} devices are not a multiple of {each} per slot", named.len());
            return Err(invalid(reason));
        }
        let slots = (named.len() / each) as u32;
        match engine.slots {
            // Without a number there are as many slots as the devices allow.
            SLOTS_AUTO | 1 => engine.slots = slots,
            required if required == slots => {}
            required => {
                let reason = format!(
                    "{required} slots of {each} devices do not use {} devices",
                    named.len()
                );
                return Err(invalid(reason));
            }
        }
        engine.assigned = named.chunks(each).map(<[String]>::to_vec).collect();
    }
    let mut offset = 0;
    for engine in config.engine.iter_mut().filter(vllm).filter(|e| e.devices.is_empty()) {
        let each = devices_each(engine);
        if each == 0 {
            continue;
        }
        let free = host.entries[offset.min(host.entries.len())..].iter();
        let free = free.filter(|device| !taken.contains(*device)).count();
        if engine.slots == SLOTS_AUTO {
            engine.slots = (free / each) as u32;
            if engine.slots == 0 {
                let reason = format!("\"auto\": {free} devices are free, a slot takes {each}");
                return Err(ConfigError::invalid("engine.slots", reason));
            }
        }
        let slots = (0..engine.slots).map(|_| next(host, &mut offset, &taken, each));
        engine.assigned = slots.collect::<Result<_, _>>().map_err(invalid)?;
    }
    Ok(())
}

/// The next devices that no block names.
fn next(
    host: &Host,
    offset: &mut usize,
    taken: &BTreeSet<String>,
    each: usize,
) -> Result<Vec<String>, String> {
    let mut devices = Vec::with_capacity(each);
    while devices.len() < each {
        let device = host.numbered(*offset)?;
        *offset += 1;
        if !taken.contains(&device) {
            devices.push(device);
        }
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The devices of each slot, over all blocks.
    fn assigned(blocks: &str, host: &Host) -> Result<Vec<Vec<String>>, String> {
        let block = "[[engine]]\nkind = 'vllm'\npython = '/p'\nmodel = 'm'\n";
        let text = blocks.split("--").map(|own| format!("{block}{own}\n")).collect::<String>();
        let mut config = Config::parse(&text, "test").map_err(|error| error.to_string())?;
        assign(&mut config, host).map_err(|error| error.to_string())?;
        let slots: Vec<_> = config.engine.iter().map(|engine| engine.slots as usize).collect();
        let assigned: Vec<_> = config.engine.into_iter().map(|engine| engine.assigned).collect();
        assert!(slots.iter().zip(&assigned).all(|(n, own)| own.is_empty() || *n == own.len()));
        Ok(assigned.into_iter().flatten().collect())
    }

    fn eight() -> Host {
        Host::of(None, 8)
    }

    #[test]
    fn blocks_of_different_sizes_share_no_device() {
        let blocks = "slots = 2\ngpus_per_slot = 1--slots = 1\ngpus_per_slot = 4--slots = 2\ngpus_per_slot = 1";
        let slots = assigned(blocks, &eight()).unwrap();
        assert_eq!(slots, [vec!["0"], vec!["1"], vec!["2", "3", "4", "5"], vec!["6"], vec!["7"]]);
        let error = assigned("slots = 3\ngpus_per_slot = 3", &eight()).unwrap_err();
        assert!(error.contains("no device 8, only 8"), "{error}");
        // A driver that lists nothing does not prove that there is nothing.
        assert_eq!(assigned("slots = 2\ngpus_per_slot = 1", &Host::of(None, 0)).unwrap().len(), 2);
    }

    #[test]
    fn named_devices_are_no_other_slots() {
        let blocks = "devices = [1, 2, 3, 4]\ntensor_parallel_size = 4--slots = 'auto'";
        let slots = assigned(blocks, &eight()).unwrap();
        assert_eq!(slots, [vec!["1", "2", "3", "4"], vec!["0"], vec!["5"], vec!["6"], vec!["7"]]);
        assert_eq!(assigned("devices = [5, 2]", &eight()).unwrap(), [["5"], ["2"]]);
        for (blocks, why) in [
            ("devices = [0, 1]--devices = [1]", "device 1 is named twice"),
            ("devices = [0, 0]", "device 0 is named twice"),
            ("devices = [0, 1, 2]\ntensor_parallel_size = 2", "not a multiple of 2"),
            ("devices = [0, 1]\nslots = 3", "3 slots of 1 devices do not use 2 devices"),
            ("devices = [8]", "no device 8"),
        ] {
            let error = assigned(blocks, &eight()).unwrap_err();
            assert!(error.contains(why), "{blocks}: {error}");
        }
    }

    #[test]
    fn numbers_count_within_what_was_inherited() {
        let host = Host::of(Some("GPU-8932f937, MIG-1c3,6"), 8);
        let slots = assigned("slots = 'auto'\ngpus_per_slot = 1", &host).unwrap();
        assert_eq!(slots, [["GPU-8932f937"], ["MIG-1c3"], ["6"]]);
        assert_eq!(assigned("devices = [2, 0]", &host).unwrap(), [["6"], ["GPU-8932f937"]]);
        assert_eq!(assigned("devices = ['MIG-1c3']", &host).unwrap(), [["MIG-1c3"]]);
        for (blocks, why) in [
            ("devices = ['GPU-other']", "not in the inherited"),
            ("devices = [6]", "no device 6, only 3"),
            ("slots = 4\ngpus_per_slot = 1", "no device 3, only 3"),
        ] {
            let error = assigned(blocks, &host).unwrap_err();
            assert!(error.contains(why), "{blocks}: {error}");
        }
        assert_eq!(Host::of(Some("3,-1,4"), 8).entries, ["3"], "as CUDA reads it");
        assert!(assigned("slots = 'auto'", &Host::of(Some(""), 8)).is_err());
    }

    #[test]
    fn slots_without_devices_are_left_to_vllm() {
        assert_eq!(assigned("slots = 2", &eight()).unwrap(), Vec::<Vec<String>>::new());
        let auto = assigned("slots = 'auto'\nengine_args = { tensor_parallel_size = 4 }", &eight());
        assert_eq!(auto.unwrap(), [["0", "1", "2", "3"], ["4", "5", "6", "7"]]);
        assert!(Config::parse("[[engine]]\nkind = 'mock'\nslots = 'all'", "test").is_err());
    }
}

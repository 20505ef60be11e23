//! Owns: the critical errors of this host's GPUs (XIDs), as the driver reports them through NVML.
//!
//! Invariant: an error belongs to an engine's life only if it was reported after that life began, on a device that the
//! life had. A GPU that falls off the bus, or cannot be watched, does not end the watch of others. A host without NVML
//! has no errors, which is logged once.
//! Absent: what an error means. It is evidence beside an exit status and a signal.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};
use parking_lot::Mutex;

/// The name under which every driver installs it.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// The limit of one wait for an event; any value works.
const WAIT_MS: u32 = 60_000;
/// The pause after a wait that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// How many errors are remembered: a dying GPU reports many, and the first of a life counts.
const SEEN_MAX: usize = 256;
/// NVML's value for an unknown error number.
const UNKNOWN: u64 = 999;

/// One critical error: NVIDIA's catalog of XIDs explains the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Xid {
    /// The device's index on the bus, as NVML and `nvidia-smi` count.
    pub(crate) device: u32,
    pub(crate) code: u64,
}

#[derive(Default)]
struct XidLog {
    /// How many were reported since the start.
    count: u64,
    last: VecDeque<Xid>,
}

/// The errors of this host.
#[derive(Default)]
pub(crate) struct Xids(Mutex<XidLog>);

impl Xids {
    /// The installed driver's errors, watched from the first call on.
    pub(crate) fn of_this_host() -> Arc<Self> {
        static WATCHED: OnceLock<Arc<Xids>> = OnceLock::new();
        WATCHED.get_or_init(|| Self::listen(LIBRARY.into())).clone()
    }

    fn listen(library: OsString) -> Arc<Self> {
        let xids = Arc::new(Self::default());
        let weak = Arc::downgrade(&xids);
        // NVML's waits block, and its set of events belongs to one thread.
        let spawned = std::thread::Builder::new().name("gpu-errors".into()).spawn(move || {
            let on_error = |xid: Xid| match weak.upgrade() {
                Some(xids) => {
                    xids.record(xid);
                    true
                }
                None => false,
            };
            if let Err(error) = wait(&library, on_error) {
                tracing::info!(%error, "GPU errors (XIDs) are not available on this host");
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "GPU errors (XIDs) are not watched: no thread");
        }
        xids
    }

    fn record(&self, xid: Xid) {
        tracing::warn!(device = xid.device, xid = xid.code, "the driver reports an error of a GPU");
        metrics::counter!("rollout_worker_gpu_errors_total").increment(1);
        let mut seen = self.0.lock();
        seen.count += 1;
        seen.last.push_back(xid);
        if seen.last.len() > SEEN_MAX {
            seen.last.pop_front();
        }
    }

    /// Marks where a life begins.
    pub(crate) fn mark(&self) -> u64 {
        self.0.lock().count
    }

    /// The first error since then on one of these devices; without devices, on any.
    pub(crate) fn since(&self, mark: u64, devices: &[u32]) -> Option<Xid> {
        let seen = self.0.lock();
        let new = usize::try_from(seen.count - mark).unwrap_or(usize::MAX).min(seen.last.len());
        let mut of_the_life = seen.last.range(seen.last.len() - new..);
        of_the_life.find(|xid| devices.is_empty() || devices.contains(&xid.device)).copied()
    }
}

/// Reports errors until the receiver stops listening, or NVML has no device to watch.
fn wait(library: &OsStr, on_error: impl Fn(Xid) -> bool) -> Result<(), NvmlError> {
    let nvml = Nvml::builder().lib_path(library).init()?;
    let (events, indices) = watch(&nvml)?;
    if indices.is_empty() {
        return Ok(());
    }
    let mut warned = false;
    loop {
        let event = match events.wait(WAIT_MS) {
            Ok(event) => event,
            Err(NvmlError::Timeout) => continue,
            Err(error @ NvmlError::Uninitialized) => return Err(error),
            Err(error) => {
                // For example when a GPU has fallen off the bus: the others may still report errors.
                if !warned {
                    tracing::warn!(%error, "cannot wait for GPU errors, trying again");
                    warned = true;
                }
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let code = match event.event_data {
            Some(XidError::Value(code)) => code,
            Some(XidError::Unknown) => UNKNOWN,
            None => continue,
        };
        let registered = indices.get(&address(&event.device)).copied();
        let Some(device) = registered.or_else(|| event.device.index().ok()) else {
            tracing::warn!(
                xid = code,
                "the driver reports an error of a GPU that it does not name"
            );
            continue;
        };
        if !on_error(Xid { device, code }) {
            return Ok(());
        }
    }
}

/// The events of all devices that can be watched, and the devices' indices by the addresses of their handles: the
/// driver no longer reports the index of a device that has fallen off the bus.
fn watch(nvml: &Nvml) -> Result<(EventSet<'_>, HashMap<usize, u32>), NvmlError> {
    let unwatched = |index: u32, error: &NvmlError| {
        tracing::warn!(device = index, %error, "the errors (XIDs) of a GPU are not watched");
    };
    let mut devices = Vec::new();
    for index in 0..nvml.device_count()? {
        match nvml.device_by_index(index) {
            Ok(device) => devices.push((index, device)),
            Err(error) => unwatched(index, &error),
        }
    }
    // A device that cannot be registered loses the set: the others get a new one.
    'set: loop {
        let mut events = nvml.create_event_set()?;
        for (at, (index, device)) in devices.iter().enumerate() {
            match device.register_events(EventTypes::CRITICAL_XID_ERROR, events) {
                Ok(set) => events = set,
                Err(error) => {
                    unwatched(*index, &error.error);
                    devices.remove(at);
                    continue 'set;
                }
            }
        }
        let indices = devices.iter().map(|(index, device)| (address(device), *index)).collect();
        return Ok((events, indices));
    }
}

/// An identifier of a device within this process.
fn address(device: &Device<'_>) -> usize {
    // SAFETY: the handle is not used; only its value is read.
    unsafe { device.handle() }.addr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const DRIVER: &str = include_str!("xid/driver.c");

    /// A driver that reports exactly two errors, as a shared library built with the C compiler that links Rust.
    fn driver(dir: &std::path::Path) -> OsString {
        let (source, library) = (dir.join("driver.c"), dir.join("libdriver.so"));
        std::fs::write(&source, DRIVER).unwrap();
        let mut cc = std::process::Command::new("cc");
        let built =
            cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        library.into_os_string()
    }

    #[test]
    fn errors_count_for_the_devices_and_the_life_that_had_them_though_one_falls_off_the_bus() {
        let dir = tempfile::tempdir().unwrap();
        let xids = Xids::listen(driver(dir.path()));
        let deadline = Instant::now() + Duration::from_secs(60);
        while xids.mark() < 2 {
            assert!(Instant::now() < deadline, "the driver's two errors are not told");
            std::thread::sleep(Duration::from_millis(5));
        }
        let (first, second) = (Xid { device: 1, code: 79 }, Xid { device: 2, code: UNKNOWN });
        assert_eq!(xids.since(0, &[]), Some(first));
        assert_eq!(xids.since(0, &[0, 2]), Some(second));
        assert_eq!(xids.since(1, &[]), Some(second), "the first came before");
        assert_eq!(xids.since(1, &[1]), None);
        assert_eq!(xids.since(2, &[]), None);
        for _ in 0..2 * SEEN_MAX {
            xids.record(first);
        }
        assert_eq!(xids.since(0, &[2]), None, "only the last are remembered");
        assert_eq!(xids.since(0, &[1]), Some(first));
    }

    #[test]
    fn a_host_without_nvml_has_no_errors() {
        assert!(wait(OsStr::new("/nowhere/libnvidia-ml.so.1"), |_| false).is_err());
        assert_eq!(Xids::listen("/nowhere/libnvidia-ml.so.1".into()).since(0, &[]), None);
    }
}

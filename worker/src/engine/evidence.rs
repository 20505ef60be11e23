//! Owns: why an engine died: the known facts, and the class that follows from them.
//!
//! Invariant: the class follows from structured data alone: an exit status, a signal, the name of an exception's
//! class, the system's own counters. The words of a message decide nothing. Without evidence the class is engine
//! death, whose cause the cluster finds by bisection.
//! Absent: the fate of the rows.

use std::io::Read;
use std::path::Path;

use rollout_proto::v1::FailureClass;
use serde::{Deserialize, Serialize};

use super::xid::Xid;

/// The version of the crash file.
const CRASH_VERSION: u32 = 1;
/// Bytes of it to read.
const CRASH_BYTES_MAX: u64 = 64 << 10;
/// Full names of exception classes that mean that memory ran out.
const OUT_OF_MEMORY: [&str; 4] = [
    "MemoryError",
    "torch.OutOfMemoryError",
    "torch.cuda.OutOfMemoryError",
    "rollout.MockOutOfMemory",
];

/// An exception that means only that another process died; that process's end is the evidence.
const CORE_IS_DEAD: &str = "vllm.v1.engine.exceptions.EngineDeadError";

/// The crash file, a JSON object: `{"version": 1, "exception": "torch.OutOfMemoryError", "message": "..."}`.
/// The first process to meet a fatal exception writes it under another name and renames it to
/// [`CRASH_FILE_ENV`](rollout_engine_protocol::CRASH_FILE_ENV)'s, unless that exists. A report that names a child's
/// signal replaces an existing one, unless that says that memory ran out: a process that communicates with a killed
/// one meets an exception as a consequence. Unknown fields are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Crash {
    pub(crate) version: u32,
    /// The exception's class with its module; Python's own without one.
    pub(crate) exception: String,
    #[serde(default)]
    pub(crate) message: String,
    /// How a process of the engine's own ended; without it the process that the agent started was useless.
    #[serde(default)]
    pub(crate) child_exit_code: Option<i32>,
    #[serde(default)]
    pub(crate) child_signal: Option<i32>,
}

impl Crash {
    pub(crate) fn new(exception: &str, message: &str) -> Self {
        Self {
            version: CRASH_VERSION,
            exception: exception.to_owned(),
            message: message.to_owned(),
            child_exit_code: None,
            child_signal: None,
        }
    }

    /// Writes the file. Errors are ignored, because the process is about to die.
    pub(crate) fn leave(&self, path: &Path) {
        let written = path.with_extension("tmp");
        if let Ok(bytes) = serde_json::to_vec(self)
            && std::fs::write(&written, bytes).is_ok()
        {
            let _ = std::fs::rename(&written, path);
        }
    }

    /// Reads the file; `None` if there is none, or none of this version.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let mut bytes = Vec::new();
        std::fs::File::open(path).ok()?.take(CRASH_BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Self::parse(&bytes)
    }

    /// `None` if the bytes are not a file of this version.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|crash: &Self| crash.version == CRASH_VERSION)
    }
}

/// The known facts about a death.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct DeathEvidence {
    /// The exit status, if the process exited.
    pub(crate) exit_code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    /// The crash file that it left.
    pub(crate) crash: Option<Crash>,
    /// The kernel OOM-killed a process in this control group while this one lived, and no other death explains the
    /// kill.
    pub(crate) oom_killed: bool,
    /// The first error that the driver reported for its devices while it lived.
    pub(crate) xid: Option<Xid>,
    /// The agent killed it because it made no progress.
    pub(crate) stalled: bool,
    /// The agent killed it because it broke the protocol.
    pub(crate) garbled: bool,
}

impl DeathEvidence {
    /// Whether it ended as an OOM-killed process does: by SIGKILL alone. An engine of several processes exits by
    /// itself when one of them is killed.
    pub(crate) fn as_the_kernel_kills(&self) -> bool {
        let killed =
            matches!((self.signal, self.exit_code), (Some(libc::SIGKILL), _) | (None, Some(_)));
        killed && self.crash.is_none() && self.xid.is_none() && !self.stalled && !self.garbled
    }

    /// The same, with the end of the process that died first if the one that the agent started only followed it.
    pub(crate) fn of_the_core(mut self) -> Self {
        let Some(crash) = self.crash.take_if(|crash| crash.exception == CORE_IS_DEAD) else {
            return self;
        };
        (self.exit_code, self.signal) = (crash.child_exit_code, crash.child_signal);
        self
    }
}

/// The class and the code of a death.
pub(crate) fn classify(evidence: &DeathEvidence) -> (FailureClass, &'static str) {
    let exception = evidence.crash.as_ref().map(|crash| crash.exception.as_str());
    // The agent's own action explains the signal, and everything else.
    if evidence.stalled {
        let code = if evidence.xid.is_some() { "GPU_XID" } else { "ENGINE_STALLED" };
        return (FailureClass::EngineDied, code);
    }
    if evidence.garbled {
        return (FailureClass::EngineDied, "ENGINE_PROTOCOL");
    }
    match (exception, evidence.signal, evidence.exit_code) {
        (Some(class), ..) if OUT_OF_MEMORY.contains(&class) => {
            (FailureClass::OutOfMemory, "ENGINE_OUT_OF_MEMORY")
        }
        // A failing device ends its process in many ways. Some rows make a device fail, so bisection continues.
        _ if evidence.xid.is_some() => (FailureClass::EngineDied, "GPU_XID"),
        (Some(_), ..) => (FailureClass::EngineDied, "ENGINE_EXCEPTION"),
        _ if evidence.oom_killed && evidence.as_the_kernel_kills() => {
            (FailureClass::OutOfMemory, "HOST_OUT_OF_MEMORY")
        }
        (None, Some(_), _) => (FailureClass::EngineDied, "ENGINE_SIGNAL"),
        (None, None, Some(_)) => (FailureClass::EngineDied, "ENGINE_EXIT"),
        (None, None, None) => (FailureClass::EngineDied, "ENGINE_DIED"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crash(exception: &str, message: &str) -> Option<Crash> {
        Some(Crash::new(exception, message))
    }

    #[test]
    fn a_death_is_classified_by_types_and_never_by_words() {
        use FailureClass::{EngineDied, OutOfMemory};
        let none = DeathEvidence::default();
        let exit = DeathEvidence { exit_code: Some(1), ..none.clone() };
        let killed = DeathEvidence { signal: Some(libc::SIGKILL), ..none.clone() };
        let xid = Some(Xid { device: 0, code: 79 });
        let words = "CUDA out of memory, torch.OutOfMemoryError";
        for (evidence, class, code) in [
            (none.clone(), EngineDied, "ENGINE_DIED"),
            (exit.clone(), EngineDied, "ENGINE_EXIT"),
            (killed.clone(), EngineDied, "ENGINE_SIGNAL"),
            (
                DeathEvidence { signal: Some(libc::SIGABRT), ..none.clone() },
                EngineDied,
                "ENGINE_SIGNAL",
            ),
            (
                DeathEvidence { crash: crash("torch.OutOfMemoryError", ""), ..exit.clone() },
                OutOfMemory,
                "ENGINE_OUT_OF_MEMORY",
            ),
            (
                DeathEvidence { crash: crash("MemoryError", ""), ..none.clone() },
                OutOfMemory,
                "ENGINE_OUT_OF_MEMORY",
            ),
            (
                DeathEvidence { crash: crash("RuntimeError", words), ..exit.clone() },
                EngineDied,
                "ENGINE_EXCEPTION",
            ),
            (
                DeathEvidence { crash: crash("my.OutOfMemoryErrorless", words), ..exit.clone() },
                EngineDied,
                "ENGINE_EXCEPTION",
            ),
            (
                DeathEvidence { oom_killed: true, ..killed.clone() },
                OutOfMemory,
                "HOST_OUT_OF_MEMORY",
            ),
            (DeathEvidence { oom_killed: true, ..exit.clone() }, OutOfMemory, "HOST_OUT_OF_MEMORY"),
            (
                DeathEvidence { signal: Some(libc::SIGSEGV), oom_killed: true, ..none.clone() },
                EngineDied,
                "ENGINE_SIGNAL",
            ),
            (
                DeathEvidence { stalled: true, oom_killed: true, ..killed.clone() },
                EngineDied,
                "ENGINE_STALLED",
            ),
            (DeathEvidence { garbled: true, ..killed.clone() }, EngineDied, "ENGINE_PROTOCOL"),
            (DeathEvidence { xid, ..exit.clone() }, EngineDied, "GPU_XID"),
            (DeathEvidence { xid, stalled: true, ..killed.clone() }, EngineDied, "GPU_XID"),
            (
                DeathEvidence { xid, crash: crash("RuntimeError", words), ..exit.clone() },
                EngineDied,
                "GPU_XID",
            ),
            (
                DeathEvidence { xid, crash: crash("MemoryError", ""), ..exit },
                OutOfMemory,
                "ENGINE_OUT_OF_MEMORY",
            ),
        ] {
            assert_eq!(classify(&evidence), (class, code), "{evidence:?}");
        }
    }

    #[test]
    fn the_end_of_a_core_that_died_first_is_the_evidence() {
        let front = DeathEvidence { exit_code: Some(1), ..DeathEvidence::default() };
        let mut dead = Crash::new(CORE_IS_DEAD, "see above");
        let unknown = DeathEvidence { crash: Some(dead.clone()), ..front.clone() }.of_the_core();
        assert_eq!(classify(&unknown), (FailureClass::EngineDied, "ENGINE_DIED"));
        dead.child_signal = Some(libc::SIGKILL);
        let killed = DeathEvidence { crash: Some(dead), oom_killed: true, ..front.clone() };
        let killed = killed.of_the_core();
        assert_eq!(killed.signal, Some(libc::SIGKILL));
        assert_eq!(classify(&killed), (FailureClass::OutOfMemory, "HOST_OUT_OF_MEMORY"));
        let other = DeathEvidence { crash: crash("ValueError", ""), ..front };
        assert_eq!(other.clone().of_the_core(), other);
    }

    #[test]
    fn a_crash_file_is_read_within_bounds_and_only_in_its_version() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crash.json");
        assert_eq!(Crash::read(&path), None);
        let left = Crash::new("torch.OutOfMemoryError", "tried to allocate");
        left.leave(&path);
        assert_eq!(Crash::read(&path), Some(left));
        for bad in [r#"{"version":2,"exception":"X"}"#, "", "[", r#"{"version":1}"#] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(Crash::read(&path), None, "{bad}");
        }
    }
}

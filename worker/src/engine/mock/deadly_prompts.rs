//! Owns: prompts that kill the engine that runs them, for tests of engine deaths.
//!
//! Invariant: such a prompt kills every time. It kills only an engine's own process: inside an agent it fails its row.
//! Absent: the handling of a death.

use std::path::PathBuf;

use rollout_proto::v1::FailureClass;

use crate::engine::EngineFailure;
use crate::engine::evidence::Crash;
use rollout_engine_protocol::CRASH_FILE_ENV;

/// How a prompt kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deadly {
    /// `MOCK_CRASH`: SIGABRT.
    Abort,
    /// `MOCK_KILL`: SIGKILL.
    Kill,
    /// `MOCK_EXIT_<status>`.
    Exit(i32),
    /// `MOCK_OOM_DIE`: writes an exception class to the crash file, then ends.
    OutOfMemory,
    /// `MOCK_FREEZE`: does nothing more until it is killed.
    Freeze,
}

impl Deadly {
    pub(super) fn of(prompt: &str) -> Option<Self> {
        if prompt.contains("MOCK_CRASH") {
            return Some(Self::Abort);
        }
        if prompt.contains("MOCK_KILL") {
            return Some(Self::Kill);
        }
        if prompt.contains("MOCK_OOM_DIE") {
            return Some(Self::OutOfMemory);
        }
        if prompt.contains("MOCK_FREEZE") {
            return Some(Self::Freeze);
        }
        let (_, rest) = prompt.split_once("MOCK_EXIT_")?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<u8>().ok().map(|status| Self::Exit(status.into()))
    }

    /// The row's failure if the process may not end.
    pub(super) fn spared(self) -> Option<EngineFailure> {
        let (class, code) = match self {
            Self::OutOfMemory => (FailureClass::OutOfMemory, "MOCK_OOM"),
            _ => (FailureClass::EngineDied, "MOCK_ENGINE_DIED"),
        };
        Some(EngineFailure::new(class, code, "the prompt would have killed the engine's process"))
    }

    /// Ends or freezes this process.
    pub(super) fn die(self) -> ! {
        eprintln!("mock engine: this end was asked for: {self:?}");
        match self {
            Self::Abort => std::process::abort(),
            Self::Kill => {
                // SAFETY: no memory is involved.
                unsafe { libc::raise(libc::SIGKILL) };
                std::process::abort()
            }
            Self::Exit(status) => std::process::exit(status),
            Self::OutOfMemory => {
                if let Some(path) = std::env::var_os(CRASH_FILE_ENV).map(PathBuf::from) {
                    Crash::new("rollout.MockOutOfMemory", "the prompt asked for it").leave(&path);
                }
                std::process::exit(1)
            }
            // Blocks the single thread that serves all rows and the agent.
            Self::Freeze => loop {
                std::thread::park();
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_says_how_it_kills() {
        assert_eq!(Deadly::of("x MOCK_CRASH"), Some(Deadly::Abort));
        assert_eq!(Deadly::of("MOCK_KILL it"), Some(Deadly::Kill));
        assert_eq!(Deadly::of("MOCK_EXIT_7, please"), Some(Deadly::Exit(7)));
        assert_eq!(Deadly::of("MOCK_OOM_DIE"), Some(Deadly::OutOfMemory));
        assert_eq!(Deadly::of("MOCK_FREEZE"), Some(Deadly::Freeze));
        assert_eq!(Deadly::of("MOCK_EXIT_256"), None);
        assert_eq!(Deadly::of("MOCK_EXIT_"), None);
        assert_eq!(Deadly::of("hello"), None);
    }
}

//! Processes of a training job, and the lines that they print.

use crate::fleet::Fleet;
use crate::process::Process;
use crate::wait::eventually_or_show;
use anyhow::{Result, bail};
use rollout_proto::Security;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of any step of a participant.
const PATIENCE: Duration = Duration::from_secs(120);

/// One participant: a process of its own.
pub struct Participant {
    pub process: Process,
    log: PathBuf,
}

impl Participant {
    /// Starts `participant WHAT JOB NAME args...`, the program of this crate at `program`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(
        fleet: &Fleet,
        program: &str,
        (what, job, name): (&str, &str, &str),
        args: &[&str],
    ) -> Result<Self> {
        let Security::Mtls(files) = fleet.security("client", "user") else {
            bail!("a fleet has certificates");
        };
        let members = fleet.member_names();
        let endpoints: Vec<&str> = members.iter().map(|name| fleet.client_addr(name)).collect();
        let mut command = Command::new(Path::new(program));
        command
            .env("PARTICIPANT_ENDPOINTS", endpoints.join(","))
            .env("PARTICIPANT_CA", files.ca)
            .env("PARTICIPANT_CERT", files.cert)
            .env("PARTICIPANT_KEY", files.key)
            .args([what, job, name])
            .args(args);
        // A participant restarted under the same name writes its own log.
        let nth = (0..).find(|n| !fleet.path(&format!("{name}-{n}.log")).exists());
        let log = fleet.path(&format!("{name}-{}.log", nth.unwrap_or_default()));
        Ok(Self { process: Process::start(command, &log)?, log })
    }

    /// The first line with this prefix, if it was printed.
    pub fn says(&self, what: &str) -> Option<String> {
        let text = std::fs::read_to_string(&self.log).ok()?;
        text.lines().find(|line| line.starts_with(what)).map(str::to_owned)
    }

    /// All lines with this prefix.
    pub fn said(&self, what: &str) -> Vec<String> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter(|line| line.starts_with(what)).map(str::to_owned).collect()
    }

    /// Waits for the first line with this beginning and end.
    ///
    /// # Panics
    /// If the line does not come in time.
    #[track_caller]
    pub fn until_it_says(&self, begins: &str, ends: &str) -> String {
        let what = format!("{begins:?}..{ends:?} in {}", self.log.display());
        eventually_or_show(&what, PATIENCE, |seen| {
            let text = std::fs::read_to_string(&self.log).ok()?;
            seen.clone_from(&text);
            let found = |line: &&str| line.starts_with(begins) && line.ends_with(ends);
            text.lines().find(found).map(str::to_owned)
        })
    }
}

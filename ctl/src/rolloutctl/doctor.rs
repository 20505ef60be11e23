//! `rolloutctl doctor`: present and future problems of a machine before it serves, or of a running cluster.
//!
//! Invariant: every check prints one line with its finding and, if it is a problem, why it matters and what to do. A
//! check that could not run has a line too. Absent: changes, except its own files in the directory whose
//! disk it measures.

mod bundle;
mod files;
mod finding;
mod machine;
mod preflight;
mod round_trips;
mod running;

use std::path::PathBuf;
use std::time::Duration;

use rollout_proto::HostPort;
use rollout_proto::pki::CertInfo;

use self::files::now_unix;
use self::finding::{Finding, Findings, Level};
use super::Failure;
use super::remaining_validity::{RemainingValidity, Stage};
use crate::connect::parse_duration;
use crate::output;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// What is looked at, and how strictly.
#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// Check this machine before a daemon starts on it, not a cluster
    #[arg(long)]
    preflight: bool,
    /// With --preflight: configuration file of the daemon that will run here
    #[arg(long = "file", value_name = "FILE", requires = "preflight")]
    file: Option<PathBuf>,
    /// With --preflight: data directory of the daemon [default: the file's]
    #[arg(long, value_name = "DIR", requires = "preflight")]
    data_dir: Option<PathBuf>,
    /// With --preflight: port of another host that must be reachable from here, such as another
    /// member's peer port; repeatable
    #[arg(long, value_name = "HOST:PORT", requires = "preflight")]
    reach: Vec<HostPort>,
    /// Warn if the 99th percentile of fsync times exceeds this
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = parse_duration)]
    fsync_max: Duration,
    /// Warn if a certificate expires within this number of days
    #[arg(long, value_name = "DAYS", default_value_t = 14)]
    cert_days: u32,
    /// Warn if less than this many GiB are free in the data directory
    #[arg(long, value_name = "GIB", default_value_t = 10)]
    free_gib: u64,
    /// Treat warnings as failures: exit status 1
    #[arg(long)]
    strict: bool,
    /// Write an archive (tar.gz) for a bug report: status, alarms, findings, members, the newest events, and the
    /// metrics and settings of each member, without secrets. Requires an admin certificate
    #[arg(long, value_name = "FILE", conflicts_with = "preflight")]
    bundle: Option<PathBuf>,
}

impl Verb for DoctorArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Runs the checks, and prints the findings. Exit status 1 if a check fails, 3 if no leader serves, 7 if no member
    /// is trusted, or trusts the caller.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        if let Some(file) = &self.bundle {
            return bundle::write(&globals.connect, globals.format, &self, file).await;
        }
        let (report, leaderless) = match self.preflight {
            true => (Findings::new(preflight::check(&self).await?), None),
            false => running::check(&globals.connect, &self).await?,
        };
        output::emit(globals.format, &report)?;
        let text = report.summary();
        match (report.worst(), leaderless) {
            (Level::Fail, Some(failure)) => Err(anyhow::Error::from(failure).context(text)),
            (Level::Fail, None) => Err(Failure::failed(text).into()),
            (Level::Warn, _) if self.strict => Err(Failure::failed(text).into()),
            (Level::Warn | Level::Ok, _) => Ok(()),
        }
    }
}

/// The finding about a certificate that a member reports.
fn expiry(what: &str, left: RemainingValidity, args: &DoctorArgs, todo: (&str, &str)) -> Finding {
    let stage = left.stage(i64::from(args.cert_days) * 86_400);
    ending(what, left.seconds, stage == Stage::Due, todo)
}

/// The finding about a local certificate: one that is valid for days is not always about to expire.
fn life(what: &str, info: &CertInfo, args: &DoctorArgs, todo: &str) -> Finding {
    let now = now_unix();
    let due = info.validity.is_due(now, i64::from(args.cert_days) * 86_400);
    ending(what, info.validity.not_after_unix - now, due, (REFUSED, todo))
}

/// The consequence when a certificate that a caller or a member presents expires.
const REFUSED: &str = "then every peer refuses connections";

/// `(why, todo)`: the consequence of its end, and what to do before it.
fn ending(what: &str, seconds_left: i64, due: bool, (why, todo): (&str, &str)) -> Finding {
    let left = output::duration(seconds_left as f64);
    let check = "certificate";
    match seconds_left {
        ..=0 => Finding::fail(check, format!("{what} has expired"), "every peer refuses it", todo),
        _ if due => {
            let found = format!("{what} expires in {left}");
            Finding::warn(check, found, why, todo)
        }
        _ => Finding::ok(check, format!("{what} is valid for {left}")),
    }
}

/// The finding about a file system's free space.
fn space(what: &str, free: u64, args: &DoctorArgs) -> Finding {
    let found = format!("{what} has {} free", output::bytes(free));
    let wanted = args.free_gib << 30;
    let todo = "free disk space, or use a larger disk";
    match free {
        _ if free >= wanted => Finding::ok("space", found),
        _ if free >= wanted / 10 => {
            Finding::warn("space", found, "a member halts when its disk is full", todo)
        }
        _ => Finding::fail("space", found, "a member halts when its disk is full", todo),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The default checks, except for the free space of the test machine.
    pub(super) fn args() -> DoctorArgs {
        DoctorArgs {
            preflight: false,
            bundle: None,
            file: None,
            data_dir: None,
            reach: Vec::new(),
            fsync_max: Duration::from_millis(10),
            cert_days: 14,
            free_gib: 0,
            strict: false,
        }
    }
}

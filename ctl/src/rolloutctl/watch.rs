//! `--watch`: repeats a read-only command.
//!
//! Invariant: a command that changes anything is never repeated by itself. If the cluster is unreachable for a while,
//! that is reported, and the command is tried again. Deliberately absent: a stream; `events --follow` and `run watch`
//! have one.

use std::io::IsTerminal as _;
use std::time::{Duration, SystemTime};

use super::cli::{
    BarrierVerb, CertVerb, CheckpointVerb, Cli, ClusterVerb, Command, DatasetVerb, ItemVerb,
    JobVerb, LeaderVerb, MemberVerb, NamespaceVerb, RendezvousVerb, RunVerb, ShardVerb, TokenVerb,
    WorkerVerb,
};
use super::{Failure, dispatch, exit};
use crate::output::{Format, reader_is_gone, rfc3339, write_stdout};
use crate::say::to_stderr;

/// With a shorter interval, a cluster would mostly answer this program.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// Repeats the command until Ctrl-C, or until it fails for a reason that waiting does not fix.
pub(super) async fn repeat(cli: Cli, every: Duration) -> anyhow::Result<()> {
    if !only_looks(&cli.command) {
        let text = "--watch is for read-only commands, such as status, list and describe";
        return Err(Failure::usage(text).into());
    }
    let every = every.max(EVERY_MIN);
    let redraw = cli.output.is_table() && std::io::stdout().is_terminal();
    let mut next = Some(cli);
    // One future for the whole command: a new one for each wait would miss a Ctrl-C that arrives during printing.
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        // Running a command consumes its parsed form.
        let mut cli = next.take().unwrap_or_else(|| super::parse(env!("CARGO_PKG_VERSION")));
        cli.output = cli.output.of_many();
        match cli.output {
            Format::Yaml => write_stdout("---\n")?,
            _ if redraw => {
                let now = rfc3339(SystemTime::now());
                write_stdout(&format!(
                    "\x1b[H\x1b[2J{now}, every {:.1} s\n\n",
                    every.as_secs_f64()
                ))?;
            }
            _ => {}
        }
        let looked = tokio::select! {
            looked = Box::pin(dispatch(cli)) => looked,
            _ = &mut interrupt => return Ok(()),
        };
        match looked {
            Ok(()) => {}
            Err(error) if exit::code(&error) == 3 => to_stderr(&exit::explain(&error)),
            Err(error) => return Err(error),
        }
        if reader_is_gone() {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(every) => {}
            _ = &mut interrupt => return Ok(()),
        }
    }
}

pub(super) fn only_looks(command: &Command) -> bool {
    match command {
        Command::Status | Command::Storage { .. } | Command::Alarm { .. } => true,
        Command::Run { verb } => matches!(verb, RunVerb::List(_) | RunVerb::Describe(_)),
        Command::Item { verb } => matches!(verb, ItemVerb::List(_) | ItemVerb::Describe(_)),
        Command::Worker { verb } => matches!(verb, WorkerVerb::List(_) | WorkerVerb::Describe(_)),
        Command::Namespace { verb } => !matches!(verb, NamespaceVerb::SetQuota(_)),
        Command::Rendezvous { verb } => !matches!(verb, RendezvousVerb::Close(_)),
        Command::Barrier { verb } => !matches!(verb, BarrierVerb::Abort(_)),
        Command::Dataset { verb: DatasetVerb::List(_) | DatasetVerb::Describe(_) } => true,
        Command::Job { verb } => matches!(verb, JobVerb::List(_)),
        Command::Shard { verb: ShardVerb::List(_) | ShardVerb::Describe(_) } => true,
        Command::Checkpoint { verb } => {
            matches!(verb, CheckpointVerb::List(_) | CheckpointVerb::Describe(_))
        }
        Command::Token { verb } => matches!(verb, TokenVerb::List(_)),
        Command::Cluster { verb } => matches!(verb, ClusterVerb::Status | ClusterVerb::Settings),
        Command::Member { verb } => matches!(verb, MemberVerb::List(_) | MemberVerb::Describe(_)),
        Command::Leader { verb } => matches!(verb, LeaderVerb::Show),
        Command::Cert { verb } => {
            matches!(verb, CertVerb::Inspect(_) | CertVerb::Status(_) | CertVerb::Revocations(_))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn what_changes_anything_is_not_repeated() {
        let looks = |args: &str| {
            let args = std::iter::once("rolloutctl").chain(args.split(' '));
            only_looks(&Cli::try_parse_from(args).unwrap().command)
        };
        for args in [
            "status",
            "worker list",
            "run describe eval",
            "member list",
            "job list",
            "cluster status",
            "cluster settings",
        ] {
            assert!(looks(args), "{args}");
        }
        for args in [
            "run cancel eval",
            "worker drain w1",
            "leader transfer",
            "member remove c1",
            "cluster upgrade",
            "cluster set cordon-after 5",
        ] {
            assert!(!looks(args), "{args}");
        }
    }
}

//! `--watch`: repeats a read-only command.
//!
//! Invariant: a command that changes anything is never repeated by itself. If the cluster is unreachable for a while,
//! that is reported, and the command is tried again. Absent: a stream; `events --follow` and `run watch`
//! have one.

use std::io::IsTerminal as _;
use std::time::{Duration, SystemTime};

use super::cli::Cli;
use super::verb::Branch as _;
use super::{Failure, exit};
use crate::output::{Format, reader_is_gone, rfc3339, write_stdout};
use crate::stdio::to_stderr;

/// With a shorter interval, a cluster would mostly answer this program.
const EVERY_MIN: Duration = Duration::from_millis(100);

/// Repeats the command until Ctrl-C, or until it fails for a reason that waiting does not fix.
pub(super) async fn repeat(cli: Cli, every: Duration) -> anyhow::Result<()> {
    if !cli.command.accepts().watch {
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
        let (command, globals) = cli.split();
        let ended = tokio::select! {
            ended = command.dispatch(&globals) => ended,
            _ = &mut interrupt => return Ok(()),
        };
        match ended {
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn watch_repeats_only_commands_that_change_nothing() {
        let repeats = |args: &str| {
            let args = std::iter::once("rolloutctl").chain(args.split(' '));
            Cli::try_parse_from(args).unwrap().command.accepts().watch
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
            assert!(repeats(args), "{args}");
        }
        for args in [
            "run cancel eval",
            "worker drain w1",
            "leader transfer",
            "member remove c1",
            "cluster upgrade",
            "cluster set cordon-after 5",
        ] {
            assert!(!repeats(args), "{args}");
        }
    }
}

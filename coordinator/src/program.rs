//! Owns: the program `rollout-coordinator`: reads flags and file into a configuration, and starts the server.
//!
//! Invariant: a refused configuration ends it with [`EXIT_CONFIG`], before it opens anything.
//! Absent: the executable's entry point, its version and its allocator (`main.rs`).

use crate::config::{Config, Flags};
use crate::observe::telemetry;
use crate::{offline, process, server};
use clap::{CommandFactory as _, FromArgMatches as _};
use std::process::ExitCode;

/// Exit status of a refused configuration (EX_CONFIG of sysexits.h).
const EXIT_CONFIG: u8 = 78;

/// Runs the command line of this process. `version` is what `--version` prints.
pub fn main(version: &'static str) -> ExitCode {
    #[cfg(feature = "seeded-bugs")]
    if let Some(code) = seeded_bug() {
        return code;
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == "snapshot") {
        return offline::snapshot(version);
    }
    let matches = Flags::command().version(version).get_matches();
    let flags = Flags::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let check = flags.check_config;
    let config = match Config::load(flags) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("error: {error:#}");
            return ExitCode::from(EXIT_CONFIG);
        }
    };
    if check {
        println!("{}: the configuration is valid", config.name);
        return ExitCode::SUCCESS;
    }
    telemetry::init(&config.log);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = match runtime.block_on(server::run(config)) {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the coordinator stops");
            eprintln!("error: {error:#}");
            process::exit_status(&error)
        }
    };
    process::leave(code)
}

/// Prints the bugs that this build can have, or enables the one that the environment names.
#[cfg(feature = "seeded-bugs")]
fn seeded_bug() -> Option<ExitCode> {
    use rollout_ledger::seeded;
    if std::env::args().nth(1).as_deref() == Some("seeded-bugs") {
        seeded::names().for_each(|name| println!("{name}"));
        return Some(ExitCode::SUCCESS);
    }
    let name = std::env::var("ROLLOUT_SEEDED_BUG").ok().filter(|name| !name.is_empty())?;
    if seeded::choose(&name) {
        eprintln!("this build misbehaves on purpose: {name}");
        return None;
    }
    eprintln!("error: ROLLOUT_SEEDED_BUG names no bug: {name}");
    Some(ExitCode::from(EXIT_CONFIG))
}

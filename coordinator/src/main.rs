//! `rollout-coordinator`: reads flags and file into a configuration, and starts the server.

use clap::{CommandFactory as _, FromArgMatches as _};
use rollout_coordinator::config::{Config, Flags};
use std::process::ExitCode;

/// jemalloc returns memory that a burst of work left unused; glibc keeps it in one arena per thread for the life of
/// the process.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit status of a refused configuration (EX_CONFIG of sysexits.h).
const EXIT_CONFIG: u8 = 78;

fn main() -> ExitCode {
    #[cfg(feature = "seeded-bugs")]
    if let Some(code) = seeded_bug() {
        return code;
    }
    let version = rollout_proto::version(option_env!("ROLLOUT_COMMIT"));
    if std::env::args_os().nth(1).is_some_and(|first| first == "snapshot") {
        return rollout_coordinator::offline::snapshot(version);
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
    rollout_coordinator::init_telemetry(&config.log);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let code = match runtime.block_on(rollout_coordinator::run(config)) {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the coordinator stops");
            eprintln!("error: {error:#}");
            rollout_coordinator::exit_status(&error)
        }
    };
    rollout_coordinator::leave(code)
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

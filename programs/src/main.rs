//! The executable `rollout-programs`, which contains `rollout`, `rolloutctl`, `rollout-worker` and
//! `rollout-coordinator`: for packages that can bring only one.
//!
//! Owns: the choice of the program. The name under which the executable was started decides, for example that of a link
//! to it; if that is no program's, the first argument.
//! Invariant: however it was chosen, a program has the process ID that its caller knows, and sees its own name and only
//! its own arguments.
//! Absent: what the programs do. They read the arguments of the process themselves.

use rollout_proto::programs;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Members need jemalloc (docs/adr/2026-11-21-members-allocator.md), and an executable has one allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// This executable's own name.
const OWN: &str = "rollout-programs";

/// Exit status of a wrong command line.
const EXIT_USAGE: u8 = 2;

struct Program {
    name: &'static str,
    /// What the usage text says about the program.
    purpose: &'static str,
    /// Runs the command line of the process. The argument is what `--version` prints.
    main: fn(&'static str) -> ExitCode,
}

static PROGRAMS: [Program; 4] = [
    Program {
        name: "rollout",
        purpose: "for users: batches, results, a local cluster",
        main: rollout_ctl::rollout::main,
    },
    Program {
        name: "rolloutctl",
        purpose: "for operators: members, workers, runs, certificates",
        main: rollout_ctl::rolloutctl::main,
    },
    Program {
        name: "rollout-worker",
        purpose: "the agent of a host with engines",
        main: rollout_worker::main,
    },
    Program {
        name: "rollout-coordinator",
        purpose: "a member of a cluster",
        main: rollout_coordinator::main,
    },
];

fn main() -> ExitCode {
    let version = rollout_proto::version(option_env!("ROLLOUT_COMMIT"));
    let mut words = std::env::args_os();
    let called = words.next().unwrap_or_default();
    if let Some(program) = Path::new(&called).file_name().and_then(named) {
        programs::runs_as(program.name);
        return (program.main)(version);
    }
    let first = words.next().unwrap_or_default();
    if let Some(program) = named(&first) {
        return become_program(program.name, words);
    }
    match first.to_str() {
        Some("--help" | "-h") => print(&usage()),
        Some("--version" | "-V") => print(&format!("{OWN} {version}\n")),
        Some("") => refuse("the name of a program is missing"),
        _ => refuse(&format!("{} is no program of rollout", first.display())),
    }
}

/// The program of this name.
fn named(name: &OsStr) -> Option<&'static Program> {
    PROGRAMS.iter().find(|program| name == program.name)
}

/// Starts this executable again in this process, under the program's name. Returns only if that fails.
fn become_program(name: &str, arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let error = match std::env::current_exe() {
        Ok(own) => Command::new(own).arg0(name).args(arguments).exec(),
        Err(error) => error,
    };
    eprintln!("error: cannot start {name}: {error}");
    ExitCode::FAILURE
}

fn usage() -> String {
    let mut text = format!(
        "One executable that contains the programs of rollout\n\n\
         Usage: {OWN} PROGRAM [ARGUMENT]...\n\n\
         A link to it with the name of a program runs as that program.\n\n\
         Programs:\n"
    );
    for Program { name, purpose, .. } in &PROGRAMS {
        text += &format!("  {name:<20} {purpose}\n");
    }
    text += "\nOptions:\n  -h, --help           Print this help\n  -V, --version        Print the version\n";
    text
}

fn print(text: &str) -> ExitCode {
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader has gone.
        Err(_) => ExitCode::FAILURE,
    }
}

fn refuse(why: &str) -> ExitCode {
    eprint!("error: {why}\n\n{}", usage());
    ExitCode::from(EXIT_USAGE)
}

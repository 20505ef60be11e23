//! `rollout-jepsen check`: prints one verdict per file. A verdict that a budget cut short never gives the exit status
//! of a pass.

use crate::formats::{Format, ReadError, events};
use crate::judge::{Budget, Judgment, Verdict, Violated, judge};
use crate::models::{CasRegister, Item, Kv, Model};
use crate::operations::pair;
use serde_json::json;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const VIOLATION: u8 = 1;
const UNKNOWN: u8 = 2;
/// Input that cannot be read, opened or understood, and output that cannot be written, as in
/// sysexits.h.
const DATA: u8 = 65;
const NO_INPUT: u8 = 66;
const OUTPUT: u8 = 74;

/// The object that the history is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ModelName {
    /// read, write, cas [from to]; initially nil
    CasRegister,
    /// get, put, append by key; initially ""
    Kv,
    /// claim, complete, fail, nack, read of rows, as `run --workload item` records them
    Item,
}

/// How verdicts are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// One line per file, `FILE VERDICT`, human-readable
    Text,
    /// One JSON object per line
    Json,
}

/// What to judge.
///
/// Prints one line per file: its name and `linearizable`, `violation` or `unknown`. Exit status: 0 all linearizable,
/// 1 any violation, 2 any unknown, 64 wrong usage, 65 and above a file that cannot be read.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Object that the operations act on
    #[arg(long, value_enum)]
    model: ModelName,
    /// Format of the files
    #[arg(long, value_enum)]
    format: Format,
    /// Configurations to visit for one file before its verdict is unknown
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    budget_configs: u64,
    /// Milliseconds to spend on one file before its verdict is unknown
    #[arg(long, value_name = "N", default_value_t = 60_000)]
    time_limit_ms: u64,
    /// Show which answer of a violation no order explains
    #[arg(long)]
    explain: bool,
    /// Format of the printed verdicts
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value = "text")]
    output: Output,
    /// History files
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Judges every file, whatever the verdict on the files before it.
pub fn run(args: &Args) -> ExitCode {
    let mut statuses = Vec::new();
    for file in &args.files {
        let started = Instant::now();
        let judged = match args.model {
            ModelName::CasRegister => judge_file(&CasRegister, file, args),
            ModelName::Kv => judge_file(&Kv, file, args),
            ModelName::Item => judge_file(&Item, file, args),
        };
        statuses.push(match &judged {
            Ok(judgment) => match judgment.verdict {
                Verdict::Linearizable => 0,
                Verdict::Violation => VIOLATION,
                Verdict::Unknown => UNKNOWN,
            },
            Err(ReadError::Io(_)) => NO_INPUT,
            Err(_) => DATA,
        });
        let printed = match &judged {
            Ok(judgment) => print(file, judgment, started.elapsed(), args.output),
            Err(err) => writeln!(io::stderr(), "{}: {err}", file.display()),
        };
        if printed.is_err() {
            return ExitCode::from(OUTPUT);
        }
    }
    ExitCode::from(status(&statuses))
}

/// A violation is certain, so it wins; files that could not be judged come second.
fn status(statuses: &[u8]) -> u8 {
    if statuses.contains(&VIOLATION) {
        return VIOLATION;
    }
    statuses.iter().copied().max().unwrap_or_default()
}

fn judge_file<M: Model>(model: &M, file: &Path, args: &Args) -> Result<Judgment, ReadError> {
    let started = Instant::now();
    let operations = pair(events(args.format, BufReader::new(File::open(file)?)))?;
    // Reading the file counts against its time limit.
    let time = Duration::from_millis(args.time_limit_ms).saturating_sub(started.elapsed());
    let budget = Budget { configurations: args.budget_configs, time };
    judge(model, &operations, budget, args.explain)
}

fn print(file: &Path, judged: &Judgment, took: Duration, output: Output) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let file = file.display();
    let first = judged.violated.first();
    if output == Output::Json {
        let keys: Vec<&str> = judged.violated.iter().filter_map(|v| v.key.as_deref()).collect();
        let line = json!({
            "file": file.to_string(),
            "verdict": judged.verdict,
            "operations": judged.operations,
            "unanswered": judged.unanswered,
            "keys": judged.keys,
            "configurations": judged.configurations,
            "elapsed_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            "limit": judged.limit,
            "violated_key": keys.first(),
            "violated_keys": keys,
            "witness": first.and_then(|violated| violated.witness.as_ref()),
        });
        return writeln!(out, "{line}");
    }
    writeln!(out, "{file} {}", judged.verdict)?;
    if judged.operations == 0 {
        // An empty history has an order; warn a user who expected operations.
        writeln!(io::stderr(), "{file}: it has 0 operations")?;
    }
    for Violated { key, witness } in &judged.violated {
        let Some(witness) = witness else { continue };
        if let Some(key) = key {
            writeln!(out, "  key {key:?}:")?;
        }
        for line in witness.to_string().lines() {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}
